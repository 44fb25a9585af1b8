"""Lists over HTTP, in OpenAI's way: `limit`, `after`, `before` and `order` in the query; `first_id`, `last_id` and
`has_more` in the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from starlette.requests import Request

from kvarn.store.repositories.pages import Cursor, Page
from kvarn.wire.openai.errors import invalid_request

ItemT = TypeVar("ItemT")

_MAX_CHARS = 256


def read_cursor(
    request: Request,
    *,
    filters: Iterable[str] = (),
    default_limit: int = 20,
    max_limit: int = 100,
    ascending: bool = False,
    ordered: bool = True,
    before: bool = False,
) -> Cursor:
    """Which part of a list a request asks for.

    Args:
        request: The request.
        filters: Names of the list's other query parameters; see `query_value`.
        default_limit: Objects where it does not say.
        max_limit: Objects it may ask for at most.
        ascending: Oldest first where it does not say.
        ordered: Whether it may choose by `order`.
        before: Whether it may page backwards by `before`.

    Raises:
        ApiError: 400 that names the parameter that is unknown or wrong.
    """
    own = {"limit", "after", *(("order",) if ordered else ()), *(("before",) if before else ())}
    check_query(request, own.union(filters))
    behind, ahead = query_value(request, "after"), query_value(request, "before")
    if behind is not None and ahead is not None:
        raise invalid_request("'after' and 'before' do not go together: give one.", "before")
    order = query_value(request, "order") or ("asc" if ascending else "desc")
    if order not in ("asc", "desc"):
        raise invalid_request("Invalid value for 'order': it must be 'asc' or 'desc'.", "order")
    return Cursor(_limit(request, default_limit, max_limit), behind, ahead, order == "asc")


def check_query(request: Request, known: Iterable[str] = ()) -> None:
    """Refuse query parameters that the operation has not.

    Raises:
        ApiError: 400 that names the first of them.
    """
    unknown = sorted({name.removesuffix("[]") for name in request.query_params} - set(known))
    if unknown:
        name = unknown[0][:80]
        raise invalid_request(f"Unrecognized query parameter supplied: {name}", name, "unknown_parameter")


def query_value(request: Request, name: str) -> str | None:
    """The value of a query parameter that may be given once; None without one.

    Raises:
        ApiError: 400 for a value that is empty, too long, given twice, or no text.
    """
    values = query_values(request, name)
    if len(values) > 1:
        raise invalid_request(f"{name!r} may be given once only.", name)
    return values[0] if values else None


def query_values(request: Request, name: str) -> list[str]:
    """All values of a query parameter, written `name=` or, as OpenAI's clients do, `name[]=`. Raises as `query_value`
    does."""
    values = [value for form in (name, f"{name}[]") for value in request.query_params.getlist(form)]
    for value in values:
        if not value or len(value) > _MAX_CHARS or not value.isprintable():
            raise invalid_request(f"Invalid value for {name!r}: 1 to {_MAX_CHARS} printable characters.", name)
    return values


def query_flag(request: Request, name: str) -> bool:
    """Whether a query parameter is `true`. Raises as `query_value` does."""
    value = query_value(request, name) or "false"
    if value not in ("true", "false"):
        raise invalid_request(f"Invalid value for {name!r}: it must be 'true' or 'false'.", name)
    return value == "true"


def list_answer(page: Page[ItemT], describe: Callable[[ItemT], Any]) -> dict[str, Any]:
    """OpenAI's list object. `describe` makes an object of the answer: a mapping or a struct, with an `id`.

    The ids of an empty page are empty strings: OpenAI's document wants strings in most lists, and has no word for none.
    """
    data = [describe(item) for item in page.items]
    return {
        "object": "list",
        "data": data,
        "first_id": _id(data[0]) if data else "",
        "last_id": _id(data[-1]) if data else "",
        "has_more": page.has_more,
    }


def _limit(request: Request, default: int, most: int) -> int:
    text = query_value(request, "limit")
    if text is None:
        return default
    limit = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if not 1 <= limit <= most:
        raise invalid_request(f"Invalid value for 'limit': it must be a number from 1 to {most}.", "limit")
    return limit


def _id(described: Any) -> str:
    return str(described["id"] if isinstance(described, dict) else described.id)
