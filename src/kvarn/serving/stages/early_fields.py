"""What admission reads of a request before the whole is checked: to refuse it must cost next to nothing."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

GENERATING = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"})
"""Paths of the operations whose bodies have these fields."""

_MAX = 2**31
Count = Annotated[int, msgspec.Meta(ge=1, le=_MAX)]


class EarlyFields(msgspec.Struct):
    """Fields of a request for an answer."""

    model: str
    n: Count | None = None
    priority: Annotated[int, msgspec.Meta(ge=-_MAX, le=_MAX)] | None = None
    service_tier: Literal["auto", "default", "flex", "priority", "fast"] | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    max_output_tokens: Count | None = None
    background: bool | None = None
    previous_response_id: Any = None
    conversation: Any = None

    @property
    def max_output(self) -> int | None:
        """Tokens that one choice may have, where the client says so."""
        return self.max_completion_tokens or self.max_output_tokens or self.max_tokens

    @property
    def has_context_elsewhere(self) -> bool:
        """Whether a part of the prompt is stored on the server."""
        return self.previous_response_id is not None or self.conversation is not None


def early_fields(body: bytes) -> EarlyFields | None:
    """Read them; None where the body is not as it should be: whoever checks it whole says why."""
    try:
        return msgspec.json.decode(body, type=EarlyFields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
