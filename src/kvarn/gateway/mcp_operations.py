"""Tools that this server offers to clients of the Model Context Protocol: models, files, search."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from kvarn.answers.chat.operation import start_chat
from kvarn.answers.record import RequestRecord
from kvarn.gateway.routes.models import visible_models
from kvarn.gateway.state import Gateway
from kvarn.identity.scopes import check_endpoint
from kvarn.store.models import File
from kvarn.store.repositories.contents import read_content
from kvarn.store.repositories.files import find_file, list_files
from kvarn.store.repositories.pages import Cursor
from kvarn.store.repositories.vector_stores.stores import list_stores
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.openai.parse import validate

_MAX_READ = 64 * 1024
LISTED = 100
_MAX_RESULTS = 20


@dataclass(frozen=True, slots=True)
class Asking:
    gateway: Gateway
    record: RequestRecord

    def may_ask(self, path: str) -> bool:
        try:
            check_endpoint(self.record.principal, path)
        except ApiError:
            return False
        return True


Run = Callable[[Asking, Mapping[str, Any]], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class ServerOperation:
    name: str
    description: str
    path: str
    """Path whose scope it needs."""
    run: Run
    properties: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...] = ()
    read_only: bool = True


async def _list_models(asking: Asking, arguments: Mapping[str, Any]) -> str:
    told = [
        {"id": model.id, "kind": model.kind, "ready": model.ready, "max_model_len": model.max_model_len}
        for model in visible_models(asking.gateway, asking.record.principal)
    ]
    return json.dumps(told, ensure_ascii=False)


async def _ask_model(asking: Asking, arguments: Mapping[str, Any]) -> str:
    messages = [{"role": "user", "content": arguments["prompt"]}]
    if arguments.get("instructions"):
        messages.insert(0, {"role": "system", "content": arguments["instructions"]})
    body = {"model": arguments["model"], "messages": messages}
    if "max_tokens" in arguments:
        body["max_completion_tokens"] = arguments["max_tokens"]
    request = validate(ChatCompletionRequest, body, asking.record.reply.warnings)
    run = await start_chat(asking.gateway, asking.record, request)
    completion = await run.collect()
    return completion.choices[0].message.content or ""


async def _list_files(asking: Asking, arguments: Mapping[str, Any]) -> str:
    cursor = Cursor(limit=_within(arguments.get("limit", 20), LISTED), after=arguments.get("after"))
    page = await list_files(asking.gateway.store, asking.record.principal.owner, cursor)
    told = [{"id": file.id, "filename": file.filename, "bytes": file.size} for file in page.items]
    return json.dumps({"files": told, "has_more": page.has_more}, ensure_ascii=False)


async def _read_file(asking: Asking, arguments: Mapping[str, Any]) -> str:
    file = await find_file(asking.gateway.store, asking.record.principal.owner, arguments["file_id"])
    first = _within(arguments.get("offset", 0), file.size, least=0)
    data = await bytes_of(asking.gateway, file, first, _MAX_READ)
    end = first + len(data)
    rest = "" if end >= file.size else f"\n[bytes {first} to {end} of {file.size}: go on at offset {end}]"
    return data.decode("utf-8", "replace") + rest


async def _list_stores(asking: Asking, arguments: Mapping[str, Any]) -> str:
    page = await list_stores(asking.gateway.store, asking.record.principal.owner, Cursor(limit=LISTED))
    told = [{"id": each.row.id, "name": each.row.name, "description": each.row.description} for each in page.items]
    return json.dumps(told, ensure_ascii=False)


async def _search(asking: Asking, arguments: Mapping[str, Any]) -> str:
    found = await asking.gateway.retrieval.search(
        asking.record.principal,
        [arguments["vector_store_id"]],
        [arguments["query"]],
        max_results=_within(arguments.get("max_results", 10), _MAX_RESULTS),
    )
    asking.record.reply.warnings += found.degraded
    told = [
        {"file_id": hit.file_id, "filename": hit.filename, "score": round(hit.score, 4), "text": hit.chunk.text}
        for hit in found.hits
    ]
    return json.dumps(told, ensure_ascii=False)


def _within(count: int, most: int, least: int = 1) -> int:
    return max(least, min(count, most))


_TEXT, _COUNT = {"type": "string"}, {"type": "integer", "minimum": 1}

OPERATIONS = (
    ServerOperation("list_models", "List the models that the key may use.", "/v1/models", _list_models, {}),
    ServerOperation(
        "ask_model",
        "Have a model answer a prompt.",
        "/v1/chat/completions",
        _ask_model,
        {"model": _TEXT, "prompt": _TEXT, "instructions": _TEXT, "max_tokens": _COUNT},
        ("model", "prompt"),
    ),
    ServerOperation(
        "list_files",
        "List the project's files, newest first.",
        "/v1/files",
        _list_files,
        {"limit": {**_COUNT, "maximum": LISTED}, "after": {**_TEXT, "description": "Id of the last file seen."}},
    ),
    ServerOperation(
        "read_file",
        f"Read {_MAX_READ} bytes of a file as text, from an offset.",
        "/v1/files",
        _read_file,
        {"file_id": _TEXT, "offset": {"type": "integer", "minimum": 0}},
        ("file_id",),
    ),
    ServerOperation("list_vector_stores", "List the project's vector stores.", "/v1/vector_stores", _list_stores, {}),
    ServerOperation(
        "search",
        "Search a vector store for passages that answer a query, by meaning and by words.",
        "/v1/vector_stores",
        _search,
        {"vector_store_id": _TEXT, "query": _TEXT, "max_results": {**_COUNT, "maximum": _MAX_RESULTS}},
        ("vector_store_id", "query"),
    ),
)


async def run_operation(
    asking: Asking, operation: ServerOperation | None, name: str, arguments: Mapping[str, Any]
) -> str:
    """Raises `ApiError` for a tool that there is not, or that the key may not use, and for arguments that are none."""
    if operation is None:
        raise ApiError(404, f"There is no tool {name[:64]!r}, or this key may not use it.", code="not_found")
    for each in operation.required:
        if each not in arguments:
            raise invalid_request(f"The argument {each!r} is missing.", each)
    for each, value in arguments.items():
        kind = operation.properties.get(each, {}).get("type")
        if kind is None or not isinstance(value, str if kind == "string" else int) or isinstance(value, bool):
            raise invalid_request(f"The argument {each[:64]!r} is unknown, or of another type than its schema's.", each)
    return await operation.run(asking, arguments)


async def bytes_of(gateway: Gateway, file: File, first: int, count: int) -> bytes:
    found, seen = bytearray(), 0
    async with aclosing(read_content(gateway.store, file)) as chunks:
        async for chunk in chunks:
            begin = max(0, first - seen)
            found += chunk[begin : begin + count - len(found)]
            seen += len(chunk)
            if len(found) >= count:
                break
    return bytes(found)
