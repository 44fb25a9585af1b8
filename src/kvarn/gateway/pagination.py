"""Lists over HTTP, in OpenAI's way: `limit`, `after`, `before` and `order` in the query; `first_id`, `last_id` and
`has_more` in the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request

from kvarn.gateway.parameters import Number, Parameter, Text
from kvarn.gateway.query import Query
from kvarn.store.repositories.pages import Cursor, Page
from kvarn.wire.openai.errors import invalid_request
from kvarn.wire.openai.lists import ListObject

ItemT = TypeVar("ItemT")
DescribedT = TypeVar("DescribedT")

_AFTER = Text("after", "Id of the object behind which the page begins.", default=None)
_BEFORE = Text("before", "Id of the object before which the page ends; not together with `after`.", default=None)


class ListQuery(Query):
    """Declares the query of a list.

    Args:
        filters: What else a request may give.
        default_limit: Objects where it does not say.
        max_limit: Objects it may ask for at most.
        ascending: Oldest first where it does not say.
        ordered: Whether it may choose by `order`.
        before: Whether it may page backwards by `before`.
    """

    def __init__(
        self,
        *filters: Parameter,
        default_limit: int = 20,
        max_limit: int = 100,
        ascending: bool = False,
        ordered: bool = True,
        before: bool = False,
    ) -> None:
        default = "asc" if ascending else "desc"
        self._limit = Number("limit", "Objects at most.", default_limit, minimum=1, maximum=max_limit)
        self._order = Text("order", "By age: `asc` is oldest first.", default, choices=("asc", "desc"))
        own = (self._limit, _AFTER, *((_BEFORE,) if before else ()), *((self._order,) if ordered else ()))
        super().__init__(*own, *filters)

    def read(self, request: Request) -> Cursor:
        """Which part of the list a request asks for.

        Raises:
            ApiError: 400 that names the parameter that is unknown or wrong, filters among them.
        """
        self.check(request)
        after, before = _AFTER.read(request), _BEFORE.read(request)
        if after is not None and before is not None:
            raise invalid_request("'after' and 'before' do not go together: give one.", "before")
        return Cursor(self._limit.read(request), after, before, self._order.read(request) == "asc")


def list_answer(page: Page[ItemT], describe: Callable[[ItemT], DescribedT]) -> ListObject[DescribedT]:
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


def _id(described: Any) -> str:
    return str(described["id"] if isinstance(described, dict) else described.id)
