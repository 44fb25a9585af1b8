"""Differences between the APIs of one server, whatever the operation: the shape of errors, headers, streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvarn.wire.openai.errors import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One API's way of speaking. Operations know their own objects; whatever concerns all of an API's answers is here.

    `kvarn.wire.dialects` lists them and decides which one a request is answered in.
    """

    name: str
    paths: tuple[str, ...]  # its own operations: each path, and what lies below it
    header: bytes = b""  # a request with this header is one of its clients', where the path is not another API's own
    base_path: str = ""  # ends the base URL that its clients are given
    request_id_headers: tuple[str, ...] = ("x-request-id",)  # headers of every answer that carry the request's id
    error_body: Callable[[ApiError, str], dict[str, Any]]  # the JSON body of an error, given the request's id
    error_schema: Mapping[str, Any]  # JSON schema of that body; its `title` names it in the OpenAPI document
    stream_type: str = "text/event-stream; charset=utf-8"  # content type of a stream
    stream_error: Callable[[dict[str, Any]], bytes]  # the item of a stream that carries the body of an error
    any_body_type: bool = False
    """Bodies are read as JSON whatever their content type says, where no page in a browser sends them."""
    stream_end: bytes = b""  # follows the last item of a stream that is whole

    def owns(self, path: str) -> bool:
        return any(path == own or path.startswith(own + "/") for own in self.paths)
