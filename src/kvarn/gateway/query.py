"""Query parameters: pydantic models, which FastAPI reads and describes (`query: Annotated[FileQuery, Query()]`).

A list may be written `name=` or, as OpenAI's clients write it, `name[]=`; an object is written `name[key]=`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_origin

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from kvarn.gateway.record import record_of
from kvarn.store.repositories.pages import Cursor, Page
from kvarn.wire.openai.common import check_printable, disagreement
from kvarn.wire.openai.errors import invalid_request
from kvarn.wire.openai.lists import ListObject

ItemT = TypeVar("ItemT")
DescribedT = TypeVar("DescribedT")

LATEST_S = (1 << 40) - 1  # the last second that a parameter may name
LARGEST_COUNT, LARGEST_ID = (1 << 31) - 1, (1 << 63) - 1  # what columns of counts, and of numbered rows, hold

_ADMINISTRATION = "/v1/organization/"
_PAGING = {"after", "before", "limit", "order"}  # not ignored by operations that lack them: the answer would be another
_MAX_WARNINGS = 8


def _check_flag(value: object) -> object:
    if value not in (True, False, "true", "false"):
        raise PydanticCustomError("flag", "it must be 'true' or 'false'")
    return value


Text = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(check_printable)]
Texts = Annotated[list[Text], Field(default_factory=list)]
Flag = Annotated[bool, BeforeValidator(_check_flag)]
Time = Annotated[int, Field(ge=0, le=LATEST_S)]  # seconds since 1970


def only_false(why: str) -> Any:
    """The rest of `Annotated[Flag, ...]` for a flag of OpenAI's that cannot be true here."""

    def check(value: bool) -> bool:
        if value:
            raise PydanticCustomError("unsupported_parameter", "`true` is not supported: {why}.", {"why": why})
        return value

    return AfterValidator(check)


class QueryModel(BaseModel):
    """Base of the query parameters of an operation. `check_query` looks for those that it does not have."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    @classmethod
    def parameters(cls) -> dict[str, tuple[str, Any]]:
        """For each name without `[]`: the name that pydantic knows, and whether it takes a `list`, a `dict` or a
        `str`."""
        named = {field.alias or name: field.annotation for name, field in cls.model_fields.items()}
        return {name.removesuffix("[]"): (name, _form(annotation)) for name, annotation in named.items()}

    @model_validator(mode="before")
    @classmethod
    def _join_brackets(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Put `name[]=` and `name=` together, and the entries of `name[key]=`."""
        names = cls.parameters()
        joined: dict[str, Any] = {}
        for key, value in data.items():
            stem, _, inner = key.partition("[")
            name, form = names.get(stem, ("", str))
            if name and inner in ("", "]"):
                values = value if isinstance(value, list) else [value]
                joined[name] = [*joined.get(name, ()), *values] if form is list else value
            elif name and inner.endswith("]"):
                entries = joined.setdefault(name, {})
                if isinstance(entries, dict):
                    entries[inner[:-1]] = value
        return joined


def _form(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return dict
    origin = get_origin(annotation)
    return origin if origin in (list, dict) else str


class ListQuery(QueryModel):
    """Which page of a list."""

    oldest_first: ClassVar[bool] = False  # where a request cannot say

    limit: int = Field(20, ge=1, le=100, description="Objects at most.")
    after: Text | None = Field(None, description="Id of the object behind which the page begins.")

    @property
    def cursor(self) -> Cursor:
        order = getattr(self, "order", "asc" if self.oldest_first else "desc")
        return Cursor(self.limit, self.after, getattr(self, "before", None), order == "asc")


class OldestFirstQuery(ListQuery):
    """A list from the oldest object on."""

    oldest_first: ClassVar[bool] = True


class OrderedQuery(ListQuery):
    """A list whose order a request may choose; else newest first."""

    order: Literal["asc", "desc"] = Field("desc", description="By age: `asc` is oldest first.")


class OrderedOldestFirstQuery(ListQuery):
    """A list whose order a request may choose; else from the oldest object on."""

    order: Literal["asc", "desc"] = Field("asc", description="By age: `asc` is oldest first.")


class BackwardQuery(ListQuery):
    """A list that may be read backwards too."""

    before: Text | None = Field(
        None, description="Id of the object before which the page ends; not together with `after`."
    )

    @model_validator(mode="after")
    def _one_direction(self) -> BackwardQuery:
        if self.after is not None and self.before is not None:
            raise disagreement("'after' and 'before' do not go together: give one.", "before")
        return self


async def check_query(request: Request) -> None:
    """Dependency of routes: warn of parameters that an operation does not have. Administration refuses them (400, as is
    a parameter given twice that may be given once): there a misspelt one may delete too much."""
    if not request.scope["query_string"]:
        return
    names = _query_model(request.scope["route"]).parameters()
    refuses = request.url.path.startswith(_ADMINISTRATION)
    warnings, seen = record_of(request.scope).reply.warnings, set[str]()
    for key, _ in sorted(request.query_params.multi_items()):
        stem, _, inner = key.partition("[")
        key = key.removesuffix("[]")
        _, form = names.get(stem, ("", None))
        known = form is not None and (inner in ("", "]") or (inner.endswith("]") and form is dict))
        if not known and (refuses or stem in names or stem in _PAGING):
            raise invalid_request(f"Unrecognized query parameter supplied: {key[:80]}", key[:80], "unknown_parameter")
        if known and key in seen and form is not list:
            raise invalid_request(f"{key!r} may be given once only.", key)
        if not known and key not in seen and len(warnings) < _MAX_WARNINGS:
            warnings.append(ignored_query(key))
        seen.add(key)


CHECKED = [Depends(check_query)]  # dependencies of routes


def ignored_query(name: str) -> str:
    """The warning about a query parameter that means nothing to an operation."""
    return f"ignored unknown query parameter {name[:40]!a}"


def _query_model(route: APIRoute) -> type[QueryModel]:
    kinds = (field.field_info.annotation for field in route.dependant.query_params)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, QueryModel)), QueryModel)


def described(shape: type[DescribedT], row: object, **own: Any) -> DescribedT:
    """An object of the answer: `own`, and what the row calls by the same names."""
    same = {name: getattr(row, name) for name in shape.__annotations__ if name not in own and hasattr(row, name)}
    return shape(**same, **own)


def list_answer(page: Page[ItemT], describe: Callable[[ItemT], DescribedT]) -> ListObject[DescribedT]:
    """OpenAI's list object. `describe` makes an object of the answer: a mapping or a struct, with an `id`.

    The ids of an empty page are empty strings: OpenAI's document wants strings in most lists, and has no word for none.
    """
    return whole_list([describe(item) for item in page.items], has_more=page.has_more)


def whole_list(data: list[Any], *, has_more: bool = False) -> ListObject[Any]:
    """OpenAI's list object of what is described already; see `list_answer`."""
    ids = [str(each["id"] if isinstance(each, dict) else each.id) for each in (*data[:1], *data[-1:])] or ["", ""]
    return {"object": "list", "data": data, "first_id": ids[0], "last_id": ids[1], "has_more": has_more}
