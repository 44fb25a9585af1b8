"""From the bytes of a request body to a validated model, or to a 400 that names the field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kvarn.wire.openai.errors import ApiError, invalid_request

MAX_DEPTH = 64  # levels of objects and arrays that a body may nest

MAX_CONTAINERS = 20_000
"""Objects and arrays in a body at most. Validating one takes some 4 us, during which nothing else runs: a hundred
thousand tiny messages in 3 MB would hold up every other request for half a second."""

_MAX_COMPLAINTS = 100  # pydantic errors examined for one body: an object of 100,000 unknown fields has as many

_CODES = {
    "extra_forbidden": "unknown_parameter",
    "missing": "missing_required_parameter",
    "unsupported_parameter": "unsupported_parameter",
    "unsupported_value": "unsupported_value",
}

_NOT_AN_OBJECT = ("model_type", "model_attributes_type", "dict_type")  # pydantic's words name our classes

RequestT = TypeVar("RequestT", bound=BaseModel)


def parse_request(model: type[RequestT], body: bytes, warnings: list[str] | None = None) -> RequestT:
    """Validate a JSON body. What is ignored of it is added to `warnings`. Raises `ApiError`: 400; `param` is the path
    of the field, such as `messages[0].content`."""
    return validate(model, decode_body(body), warnings)


def validate(model: type[RequestT], data: dict[str, Any], warnings: list[str] | None = None) -> RequestT:
    """Validate decoded data. Adds warnings and raises as `parse_request` does."""
    unknown = data.keys() - model.model_fields.keys()
    if unknown and model.model_config.get("extra") == "forbid":  # asked first: one cheap answer however many there are
        name = _shorten(min(unknown))
        raise invalid_request(f"Unrecognized request argument supplied: {name}", name, "unknown_parameter")
    try:
        return model.model_validate(data, context=warnings)
    except ValidationError as error:
        raise _to_api_error(error, data) from None


def decode_body(body: bytes) -> dict[str, Any]:
    """Decode a JSON object: UTF-8, no NaN or Infinity, no lone surrogates, at most `MAX_DEPTH` levels deep and with at
    most `MAX_CONTAINERS` objects and arrays. Raises `ApiError`: 400."""
    try:
        data = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except UnicodeDecodeError as error:
        raise invalid_request(
            f"The request body is not valid UTF-8 (byte {error.start}).", code="invalid_json"
        ) from None
    except (msgspec.DecodeError, ValueError) as error:
        raise invalid_request(f"The request body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise invalid_request("The request body must be a JSON object.", code="invalid_json")
    # A body with few brackets cannot be deep: most bodies, and long lists of token ids, skip the walk.
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_shape(data)
    return data


def _check_shape(data: dict[str, Any]) -> None:
    level: list[Any] = [data]
    containers = 0
    for _ in range(MAX_DEPTH):
        containers += len(level)
        if containers > MAX_CONTAINERS:
            message = f"The request body holds more than {MAX_CONTAINERS} objects and arrays."
            raise invalid_request(message, code="request_too_complex")
        children = (node.values() if isinstance(node, dict) else node for node in level)
        level = [item for group in children for item in group if isinstance(item, dict | list)]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ApiError:
    return invalid_request(f"The request body is nested more than {MAX_DEPTH} levels deep.", code="invalid_json")


def _to_api_error(error: ValidationError, data: dict[str, Any]) -> ApiError:
    """The most telling of pydantic's complaints: of a union's branches, the one that came furthest into the data."""
    details = error.errors(include_url=False, include_input=False)[:_MAX_COMPLAINTS]
    path, worst = max(((_path(detail, data), detail) for detail in details), key=lambda pair: len(pair[0]))
    return field_error(_format_path(path), worst)


def field_error(param: str, detail: Mapping[str, Any]) -> ApiError:
    """The 400 for one of pydantic's complaints about a field or a query parameter."""
    kind, message = detail["type"], detail["msg"]
    if "param" in detail.get("ctx", {}):
        param = detail["ctx"]["param"]
    elif kind == "extra_forbidden":
        message = f"Unrecognized request argument supplied: {param}"
    elif kind == "missing":
        message = f"Missing required parameter: {param}"
    elif kind in _NOT_AN_OBJECT:
        message = f"Invalid value for {param!r}: it must be an object."
    elif kind not in _CODES:
        message = f"Invalid value for {param!r}: {message}"
    return invalid_request(message, param or None, _CODES.get(kind, "invalid_value"))


def _path(detail: ErrorDetails, data: Any) -> list[str | int]:
    """Pydantic's location without the labels of union branches: only steps that exist in the data."""
    path: list[str | int] = []
    is_missing = detail["type"] == "missing"
    steps = detail["loc"][:-1] if is_missing else detail["loc"]
    for step, after in zip_longest(steps, steps[1:]):
        if not _has(data, step) or _is_label(step, after, data, is_missing):
            continue
        data = data[step]
        path.append(step)
    if is_missing:
        path.append(detail["loc"][-1])
    if detail["type"] in ("union_tag_invalid", "union_tag_not_found"):  # the tag is at fault, not what it stands in
        path.append(str(detail["ctx"]["discriminator"]).strip("'"))
    return path


def _has(data: Any, step: str | int) -> bool:
    if isinstance(step, int):
        return isinstance(data, list) and -len(data) <= step < len(data)
    return isinstance(data, dict) and step in data


def _is_label(step: str | int, after: str | int | None, data: Any, is_missing: bool) -> bool:
    """Whether a step is a branch's label though the data has a key of that name: `{"type": "text", "text": ...}`. What
    comes after it stands beside that key then, not in it."""
    if after is None:
        return is_missing and not isinstance(data[step], dict)
    return not _has(data[step], after) and _has(data, after)


def _format_path(path: Sequence[str | int]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{_shorten(step)}" if text else _shorten(step)
    return text


def _shorten(name: str) -> str:
    return name if len(name) <= 80 else name[:77] + "..."
