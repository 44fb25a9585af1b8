"""An OpenAPI document (3.0, 3.1) as tools: each operation is one, whose arguments are its parameters and its body."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from kvarn.tools.functions import ServerTool

MAX_DOCUMENT_BYTES = 256 * 1024
_METHODS = ("get", "put", "post", "delete", "patch")
_READ_ONLY = frozenset({"get"})
_MAX_NODES = 5_000
_MAX_DEPTH = 20
_BODY = "body"
_JSON = "application/json"
_PLACES = frozenset({"path", "query"})
"""Parameters that a model may set; headers and cookies are the registration's."""


class DocumentError(Exception):
    """A document that cannot be used, with the reason."""


@dataclass(frozen=True, slots=True)
class Operation:
    tool: ServerTool
    method: str
    url: str
    """With `{parameters}` in its path."""
    places: Mapping[str, str] = field(default_factory=dict)
    """`path`, `query` or `body`, by argument."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    url: str
    body: Any = None
    has_body: bool = False


def operations_of(document: Mapping[str, Any], base: str = "") -> list[Operation]:
    """The operations of a document that was read from `base`. Those that need what no tool has (a body that is no
    JSON, for instance) are left out. Raises `DocumentError`."""
    if not str(document.get("openapi", "")).startswith("3."):
        raise DocumentError("this is no OpenAPI document of version 3")
    server, resolver = _server_of(document, base), _Resolver(document)
    found: dict[str, Operation] = {}
    for path, item in _mapping(document.get("paths")).items():
        for method in _METHODS:
            operation = _mapping(item).get(method)
            if not isinstance(operation, Mapping) or not path.startswith("/"):
                continue
            made = _operation(server + path, method, _mapping(item), operation, resolver)
            if made is not None and found.setdefault(made.tool.name, made) is not made:
                raise DocumentError(f"two operations have the name {made.tool.name!r}")
    if not found:
        raise DocumentError("it has no operations that can be tools")
    return list(found.values())


def request_of(operation: Operation, arguments: Mapping[str, Any]) -> Request:
    """The request of a call. Raises `ValueError` for arguments that are none of the operation's, or missing from its
    path."""
    unknown = [name for name in arguments if name not in operation.places]
    if unknown:
        raise ValueError(f"it has no argument {unknown[0][:64]!r}")

    def in_path(match: re.Match[str]) -> str:
        name = match[1]
        value = arguments.get(name)
        if value is None:
            raise ValueError(f"the argument {name!r} is missing")
        if not (text := _text(value)):
            raise ValueError(f"the argument {name!r} cannot be empty: it is a part of a path")
        return quote(text, safe="")

    url = re.sub(r"\{([^{}]+)\}", in_path, operation.url)
    if not {".", ".."}.isdisjoint(url.split("/")):
        raise ValueError("no part of a path can be '.' or '..'")
    pairs = [
        (name, _text(each))
        for name, value in arguments.items()
        if operation.places[name] == "query" and value is not None
        for each in (value if isinstance(value, list) else [value])
    ]
    url += f"?{urlencode(pairs)}" if pairs else ""
    has_body = operation.places.get(_BODY) == _BODY and _BODY in arguments
    return Request(operation.method.upper(), url, arguments.get(_BODY) if has_body else None, has_body)


def _operation(
    url: str, method: str, item: Mapping[str, Any], operation: Mapping[str, Any], resolver: _Resolver
) -> Operation | None:
    properties: dict[str, Any] = {}
    places: dict[str, str] = {}
    required: list[str] = []
    for parameter in _parameters(item, operation, resolver):
        name, place = str(parameter.get("name", "")), parameter.get("in")
        if place not in _PLACES or not name:
            if parameter.get("required"):
                return None
            continue
        schema = resolver.inlined(parameter.get("schema") or {})
        told = parameter.get("description")
        properties[name] = {**schema, "description": told} if isinstance(told, str) else schema
        places[name] = str(place)
        if parameter.get("required") or place == "path":
            required.append(name)
    body = resolver.inlined(operation.get("requestBody") or {}, depth=3)
    if body:
        content = _mapping(_mapping(body.get("content")).get(_JSON))
        if content and _BODY not in places:
            properties[_BODY] = resolver.inlined(content.get("schema") or {})
            places[_BODY] = _BODY
            required += [_BODY] if body.get("required") else []
        elif body.get("required"):
            return None
    if any(name not in places for name in re.findall(r"\{([^{}]+)\}", url)):
        return None
    told = [text for text in (operation.get("summary"), operation.get("description")) if isinstance(text, str)]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    given = operation.get("operationId")
    tool = ServerTool(
        name=given if isinstance(given, str) and given else _name_of(method, url),
        description="\n".join(told),
        schema=schema,
        annotations={"readOnlyHint": method in _READ_ONLY},
        request=f"{method.upper()} {url}",
    )
    return Operation(tool, method, url, places)


def _parameters(
    item: Mapping[str, Any], operation: Mapping[str, Any], resolver: _Resolver
) -> Iterator[Mapping[str, Any]]:
    """The parameters of an operation; its own stand for those of its path."""
    found: dict[tuple[Any, Any], Mapping[str, Any]] = {}
    for parameter in (*_sequence(item.get("parameters")), *_sequence(operation.get("parameters"))):
        known = resolver.referred(parameter)
        found[(known.get("name"), known.get("in"))] = known
    yield from found.values()


class _Resolver:
    """Puts what a document's references name in their places. A reference within itself becomes any value, and so does
    what is too deep; a document that grows too large is refused."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._left = _MAX_NODES

    def referred(self, value: Any) -> Mapping[str, Any]:
        for _ in range(_MAX_DEPTH):
            reference = _mapping(value).get("$ref")
            if not isinstance(reference, str):
                return _mapping(value)
            value = self._at(reference)
        return {}

    def inlined(self, value: Any, depth: int = _MAX_DEPTH, within: tuple[str, ...] = ()) -> dict[str, Any]:
        result = self._inlined(value, depth, within)
        return result if isinstance(result, dict) else {}

    def _inlined(self, value: Any, depth: int, within: tuple[str, ...]) -> Any:
        self._left -= 1
        if self._left < 0:
            raise DocumentError(f"its schemas have more than {_MAX_NODES} parts")
        if isinstance(value, Mapping):
            reference = value.get("$ref")
            if isinstance(reference, str):
                if reference in within or depth <= 0:
                    return {}
                return self._inlined(self._at(reference), depth - 1, (*within, reference))
            if depth <= 0:
                return dict(value) if "$ref" not in str(value) else {}
            return {key: self._inlined(each, depth - 1, within) for key, each in value.items()}
        if isinstance(value, list):
            return [self._inlined(each, depth - 1, within) for each in value] if depth > 0 else []
        return value

    def _at(self, reference: str) -> Any:
        found: Any = self._document
        if not reference.startswith("#/"):
            return {}  # another document, which nobody fetches
        for step in reference[2:].split("/"):
            found = _mapping(found).get(step.replace("~1", "/").replace("~0", "~"), {})
        return found


def _server_of(document: Mapping[str, Any], base: str) -> str:
    servers = _sequence(document.get("servers")) or [{"url": "/"}]
    first = _mapping(servers[0])
    url = str(first.get("url", "/"))
    for name, variable in _mapping(first.get("variables")).items():
        url = url.replace(f"{{{name}}}", str(_mapping(variable).get("default", "")))
    try:
        joined = httpx.URL(base).join(url) if base else httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        raise DocumentError("the URL of its server cannot be read") from None
    if joined.is_relative_url:
        raise DocumentError("its `servers` must begin with an absolute URL")
    return str(joined.copy_with(query=None, fragment=None)).rstrip("/")


def _name_of(method: str, url: str) -> str:
    return f"{method}_" + "_".join(re.findall(r"[A-Za-z0-9]+", httpx.URL(url).path))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError("a parameter of a path or a query is a text, a number, true or false")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else []
