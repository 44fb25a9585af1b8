"""Query parameters: pydantic models, which FastAPI reads and describes (`query: Annotated[FileQuery, Query()]`).

A list may be written `name=` or, as OpenAI's clients write it, `name[]=`; an object is written `name[key]=`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_origin

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from kvarn.gateway.record import record_of
from kvarn.store.repositories.pages import Cursor, Page
from kvarn.wire.openai.common import disagreement
from kvarn.wire.openai.errors import invalid_request
from kvarn.wire.openai.lists import ListObject

ItemT = TypeVar("ItemT")
DescribedT = TypeVar("DescribedT")

LATEST_S = (1 << 40) - 1
"""The last second that a parameter may name."""

_ADMINISTRATION = "/v1/organization/"
_PAGING = {"after", "before", "limit", "order"}
"""Not ignored by operations that lack them: the answer would be another."""
_MAX_WARNINGS = 8


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise PydanticCustomError("not_printable", "it must be printable text")
    return text


def _check_flag(value: object) -> object:
    if value not in (True, False, "true", "false"):
        raise PydanticCustomError("flag", "it must be 'true' or 'false'")
    return value


Text = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_check_printable)]
Texts = Annotated[list[Text], Field(default_factory=list)]
Flag = Annotated[bool, BeforeValidator(_check_flag)]
Time = Annotated[int, Field(ge=0, le=LATEST_S)]
"""Seconds since 1970."""


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
    def parameters(cls) -> dict[str, str]:
        """The names by which fields are given, by the same names without `[]`."""
        aliases = (field.alias or name for name, field in cls.model_fields.items())
        return {alias.removesuffix("[]"): alias for alias in aliases}

    @classmethod
    def is_object(cls, name: str) -> bool:
        """Whether a field is given as `name[key]=`."""
        kind = cls.model_fields[name].annotation if name in cls.model_fields else None
        return get_origin(kind) is dict or (isinstance(kind, type) and issubclass(kind, BaseModel))

    @classmethod
    def is_list(cls, name: str) -> bool:
        """Whether a field may be given more than once."""
        return any(
            get_origin(field.annotation) is list
            for key, field in cls.model_fields.items()
            if name in (key, field.alias)
        )

    @model_validator(mode="before")
    @classmethod
    def _join_brackets(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Put `name[]=` and `name=` together, and the entries of `name[key]=`."""
        names = cls.parameters()
        joined: dict[str, Any] = {}
        for key, value in data.items():
            stem, _, inner = key.partition("[")
            name = names.get(stem)
            if name is None:
                continue
            if inner in ("", "]"):
                is_list = cls.is_list(name)
                joined[name] = [*joined.get(name, ()), *_as_list(value)] if is_list else value
            elif inner.endswith("]"):
                entries = joined.setdefault(name, {})
                if isinstance(entries, dict):
                    entries[inner[:-1]] = value
        return joined


class ListQuery(QueryModel):
    """Which page of a list."""

    oldest_first: ClassVar[bool] = False
    """Where a request cannot say."""

    limit: int = Field(20, ge=1, le=100, description="Objects at most.")
    after: Text | None = Field(None, description="Id of the object behind which the page begins.")

    @property
    def cursor(self) -> Cursor:
        """The page for the store."""
        chosen = self.model_dump(include={"before", "order"})
        ascending = chosen.get("order", "asc" if self.oldest_first else "desc") == "asc"
        return Cursor(self.limit, self.after, chosen.get("before"), ascending)


class OldestFirstQuery(ListQuery):
    """A list from the oldest object on."""

    oldest_first: ClassVar[bool] = True


class OrderedQuery(ListQuery):
    """A list whose order a request may choose; else from the newest object on."""

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
    """Dependency of routes: look for parameters that an operation does not have. They are ignored with a warning.
    Administration refuses them: there a misspelt one may delete too much.

    Raises:
        ApiError: 400 that names the first such parameter, or one that is given twice and may be given once.
    """
    if not request.scope["query_string"]:
        return
    model = _query_model(request.scope["route"])
    names = model.parameters()
    refuses = request.url.path.startswith(_ADMINISTRATION)
    warnings, seen = record_of(request.scope).warnings, set[str]()
    for key, _ in sorted(request.query_params.multi_items()):
        stem, _, inner = key.partition("[")
        key = key.removesuffix("[]")
        known = stem in names and (inner in ("", "]") or (inner.endswith("]") and model.is_object(stem)))
        if not known and (refuses or stem in names or stem in _PAGING):
            raise invalid_request(f"Unrecognized query parameter supplied: {key[:80]}", key[:80], "unknown_parameter")
        if known and key in seen and not model.is_list(names[stem]):
            raise invalid_request(f"{key!r} may be given once only.", key)
        if not known and key not in seen and len(warnings) < _MAX_WARNINGS:
            warnings.append(f"ignored unknown query parameter {key[:40]!a}")
        seen.add(key)


def _query_model(route: APIRoute) -> type[QueryModel]:
    for field in route.dependant.query_params:
        kind = field.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, QueryModel):
            return kind
    return QueryModel


def _as_list(value: str | list[str]) -> list[str]:
    return value if isinstance(value, list) else [value]


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
