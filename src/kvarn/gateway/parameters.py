"""Parameters of a query string. Each is declared once: it is read by its declaration, and described by it in the
OpenAPI document, so the two cannot differ.

A parameter may be written `name=` or, as OpenAI's clients write lists, `name[]=`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from starlette.requests import Request

from kvarn.wire.openai.errors import ApiError, invalid_request

DefaultT = TypeVar("DefaultT")

LATEST_S = (1 << 40) - 1
"""The last second that may be asked for."""
TIME = "a time in seconds since 1970"
"""What a `Number` of seconds is."""

_MAX_CHARS = 256
_MAX_KEY_CHARS = 64
_MAX_DIGITS = 16
_DEEP: Final = {"style": "deepObject", "explode": True}
"""OpenAPI's word for an object whose fields are given as `name[field]=`."""


class Required(Enum):
    """The default of a parameter that has none."""

    REQUIRED = "required"


REQUIRED: Final = Required.REQUIRED


@dataclass(frozen=True)
class Parameter(ABC):
    """A parameter of some kind."""

    name: str
    """As the document has it: with `[]` where OpenAI's has."""
    description: str

    @property
    def key(self) -> str:
        """Its name in the query and in errors."""
        return self.name.removesuffix("[]")

    def takes(self, key: str) -> bool:
        """Whether what is called so in a query, less any `[]` at the end, belongs to this parameter."""
        return key == self.key

    @abstractmethod
    def read(self, request: Request) -> object:
        """What a request says.

        Raises:
            ApiError: 400 that names the parameter: a wrong value, one that is missing, more than one where there may
                be one only.
        """

    @property
    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """JSON schema of its value."""

    @property
    def described(self) -> dict[str, Any]:
        """OpenAPI's parameter object."""
        return {"name": self.name, "in": "query", "description": self.description, "schema": self.schema}


@dataclass(frozen=True)
class Single(Parameter, Generic[DefaultT]):
    """A parameter that may be given once."""

    default: DefaultT | Required
    """Its value where a request does not give it."""

    @property
    def described(self) -> dict[str, Any]:
        """OpenAPI's parameter object."""
        described = super().described
        if self.default is REQUIRED:
            described["required"] = True
        elif self.default is not None:
            described["schema"]["default"] = self.default
        return described

    def _default(self) -> DefaultT:
        if isinstance(self.default, Required):
            message = f"Missing required parameter: {self.key}"
            raise invalid_request(message, self.key, "missing_required_parameter")
        return self.default


@dataclass(frozen=True)
class Text(Single[DefaultT]):
    """A text, or one of a few."""

    choices: tuple[str, ...] = ()
    """All that it may be. Default: 1 to 256 printable characters."""

    def read(self, request: Request) -> str | DefaultT:
        """The text. Raises as `Parameter.read` does."""
        text = _one(request, self.key)
        if text is None:
            return self._default()
        _check_choice(self.key, text, self.choices)
        return text

    @property
    def schema(self) -> dict[str, Any]:
        """A string, or an enumeration."""
        return _text_schema(self.choices)


@dataclass(frozen=True)
class Number(Single[DefaultT]):
    """A whole number, not negative."""

    minimum: int = 0
    maximum: int = 999_999_999
    kind: str = "a number"
    """For the error."""

    def read(self, request: Request) -> int | DefaultT:
        """The number. Raises as `Parameter.read` does."""
        text = _one(request, self.key)
        if text is None:
            return self._default()
        digits = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
        if not (digits and self.minimum <= int(text) <= self.maximum):
            raise _invalid(self.key, f"it must be {self.kind}, from {self.minimum} to {self.maximum}")
        return int(text)

    @property
    def schema(self) -> dict[str, Any]:
        """An integer with its bounds."""
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}


@dataclass(frozen=True)
class Flag(Single[DefaultT]):
    """`true` or `false`."""

    refused: str | None = None
    """Why it cannot be `true`, where it cannot."""

    def read(self, request: Request) -> bool | DefaultT:
        """Whether it is true. Raises as `Parameter.read` does."""
        text = _one(request, self.key)
        if text is None:
            return self._default()
        _check_choice(self.key, text, ("true", "false"))
        if text == "true" and self.refused is not None:
            message = f"{self.key!r} is not supported: {self.refused}."
            raise invalid_request(message, self.key, "unsupported_parameter")
        return text == "true"

    @property
    def schema(self) -> dict[str, Any]:
        """A boolean."""
        return {"type": "boolean"} | ({"enum": [False]} if self.refused is not None else {})

    @property
    def described(self) -> dict[str, Any]:
        """OpenAPI's parameter object."""
        described = super().described
        if self.refused is not None:
            described["description"] += f" `true` is not supported: {self.refused}."
        return described


@dataclass(frozen=True)
class Texts(Parameter):
    """Any number of texts, each given by itself."""

    choices: tuple[str, ...] = ()
    """All that each may be. Default: 1 to 256 printable characters."""

    def read(self, request: Request) -> tuple[str, ...]:
        """The texts, in no order that means anything. Raises as `Parameter.read` does."""
        texts = _values(request, self.key)
        for text in texts:
            _check_choice(self.key, text, self.choices)
        return tuple(texts)

    @property
    def schema(self) -> dict[str, Any]:
        """An array of strings."""
        return {"type": "array", "items": _text_schema(self.choices)}


@dataclass(frozen=True)
class Entries(Parameter):
    """Texts by keys of any name, given as `name[key]=`, each once."""

    most: int = 16

    def takes(self, key: str) -> bool:
        """Whether this is an entry: its key is 1 to 64 printable characters."""
        own = self._own_key(key)
        return 0 < len(own) <= _MAX_KEY_CHARS and own.isprintable()

    def read(self, request: Request) -> dict[str, str]:
        """The entries. Raises as `Parameter.read` does."""
        given = sorted(key for key in keys_of(request) if self.takes(key))
        if len(given) > self.most:
            raise _invalid(self.key, f"it may have at most {self.most} entries")
        return {self._own_key(key): text for key in given if (text := _one(request, key)) is not None}

    @property
    def schema(self) -> dict[str, Any]:
        """An object of strings."""
        return {
            "type": "object",
            "propertyNames": {"minLength": 1, "maxLength": _MAX_KEY_CHARS},
            "additionalProperties": _text_schema(),
            "maxProperties": self.most,
        }

    @property
    def described(self) -> dict[str, Any]:
        """OpenAPI's parameter object."""
        return super().described | _DEEP

    def _own_key(self, key: str) -> str:
        """An entry's key by its name in the query; empty where it is none of these."""
        prefix = f"{self.key}["
        return key[len(prefix) : -1] if key.startswith(prefix) and key.endswith("]") else ""


@dataclass(frozen=True)
class TimeRange(Parameter):
    """Bounds of a time: `name[gt]=`, `name[gte]=`, `name[lt]=`, `name[lte]=`."""

    def takes(self, key: str) -> bool:
        """Whether this is one of the bounds."""
        return any(number.takes(key) for number in self._bounds.values())

    def read(self, request: Request) -> dict[str, int]:
        """Seconds since 1970 by bound. Raises as `Parameter.read` does."""
        found = {bound: number.read(request) for bound, number in self._bounds.items()}
        return {bound: second for bound, second in found.items() if second is not None}

    @property
    def schema(self) -> dict[str, Any]:
        """An object of integers."""
        properties = {bound: number.schema for bound, number in self._bounds.items()}
        return {"type": "object", "additionalProperties": False, "properties": properties}

    @property
    def described(self) -> dict[str, Any]:
        """OpenAPI's parameter object."""
        return super().described | _DEEP

    @property
    def _bounds(self) -> dict[str, Number[None]]:
        return {
            bound: Number(f"{self.name}[{bound}]", "", None, maximum=LATEST_S, kind=TIME)
            for bound in ("gt", "gte", "lt", "lte")
        }


def keys_of(request: Request) -> set[str]:
    """What a request's query names, less the `[]` of lists."""
    return {name.removesuffix("[]") for name in request.query_params}


def _one(request: Request, key: str) -> str | None:
    values = _values(request, key)
    if len(values) > 1:
        raise invalid_request(f"{key!r} may be given once only.", key)
    return values[0] if values else None


def _values(request: Request, key: str) -> list[str]:
    values = [value for form in (key, f"{key}[]") for value in request.query_params.getlist(form)]
    for value in values:
        if not value or len(value) > _MAX_CHARS or not value.isprintable():
            raise _invalid(key, f"1 to {_MAX_CHARS} printable characters")
    return values


def _check_choice(key: str, text: str, choices: tuple[str, ...]) -> None:
    if choices and text not in choices:
        raise _invalid(key, f"it must be one of {', '.join(choices)}")


def _text_schema(choices: tuple[str, ...] = ()) -> dict[str, Any]:
    if choices:
        return {"type": "string", "enum": list(choices)}
    return {"type": "string", "minLength": 1, "maxLength": _MAX_CHARS}


def _invalid(key: str, why: str) -> ApiError:
    return invalid_request(f"Invalid value for {key!r}: {why}.", key)
