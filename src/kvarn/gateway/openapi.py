"""The OpenAPI document: FastAPI's list of operations, with the queries and bodies that the routes read themselves, and
the errors that all of them may answer with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fastapi import FastAPI
from fastapi.routing import APIRoute
from msgspec.json import schema_components
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from kvarn.wire.anthropic.errors import speaks_anthropic

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_REF = "#/components/schemas/{name}"
_ANSWER = "Answer.{name}"
"""Name of an answer's schema: some bodies have the same names."""
_ANSWER_REF = _REF.format(name=_ANSWER)
_SECURITY_SCHEMES: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key. Servers in open mode need none."},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "As Anthropic's clients do."},
}

EVENTS: Final = {"responses": {"200": {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}}
"""`openapi_extra` of a route that answers with events where it is asked to."""

_TEXT: Final = {"type": "string"}
_ERRORS: Final = {
    "ErrorResponse": {
        "type": "object",
        "description": "An error, in OpenAI's shape.",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": _TEXT | {"description": "What is wrong, and what to do."},
                    "type": _TEXT,
                    "param": {"type": ["string", "null"], "description": "The field or parameter at fault."},
                    "code": {"type": ["string", "null"]},
                },
            }
        },
    },
    "AnthropicErrorResponse": {
        "type": "object",
        "description": "An error, in Anthropic's shape.",
        "required": ["type", "error", "request_id"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": _TEXT, "message": _TEXT},
            },
            "request_id": _TEXT,
        },
    },
}


_SHAPES = "__kvarn_shapes__"
"""Attribute of an operation's function."""


@dataclass(frozen=True, slots=True)
class _Shapes:
    answer: Any
    body: type[BaseModel] | None


def shapes(answer: Any, body: type[BaseModel] | None = None) -> Callable[[FunctionT], FunctionT]:
    """Says for the document what an operation answers, with any type that msgspec knows, and which JSON body it reads
    by itself."""

    def note(function: FunctionT) -> FunctionT:
        setattr(function, _SHAPES, _Shapes(answer, body))
        return function

    return note


def describe(app: FastAPI, routes: Sequence[BaseRoute], public: Collection[str]) -> None:
    """Add the schemas of bodies, answers and errors, and the API key, to the application's OpenAPI document, made when
    first asked for. `public` are the paths that need no key."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = make()
            document["components"] = {"schemas": _ERRORS | _add_shapes(document["paths"], routes)}
            document["components"]["securitySchemes"] = _SECURITY_SCHEMES
            for path, operations in document["paths"].items():
                for operation in operations.values():
                    operation["responses"].pop("422", None)  # FastAPI's own; ours is a 400
                    operation["responses"].update(_errors(path))
                    operation["security"] = [] if path in public else [{name: []} for name in _SECURITY_SCHEMES]
        return make()

    app.openapi = openapi  # type: ignore[method-assign]


def _add_shapes(paths: dict[str, Any], routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """Put references to the shapes of bodies and answers into the operations; returns their schemas by name."""
    found = [
        (paths[route.path_format][method.lower()], shape)
        for route in routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in route.methods or ()
        if (shape := getattr(route.endpoint, _SHAPES, None)) is not None
    ]
    bodies = list({shape.body: None for _, shape in found if shape.body is not None})
    template = _REF.format(name="{model}")
    _, of_bodies = models_json_schema([(body, "validation") for body in bodies], ref_template=template)
    answers, of_answers = schema_components([shape.answer for _, shape in found], ref_template=_ANSWER_REF)
    for (operation, shape), answer in zip(found, answers, strict=True):
        operation["responses"]["200"]["content"]["application/json"] = {"schema": answer}
        if shape.body is not None:
            schema = {"$ref": _REF.format(name=shape.body.__name__)}
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    schemas: dict[str, Any] = of_bodies["$defs"]
    return schemas | {_ANSWER.format(name=name): schema for name, schema in of_answers.items()}


def _errors(path: str) -> dict[str, Any]:
    """What an operation answers with when it refuses a request, or fails."""
    schema = {"$ref": _REF.format(name="AnthropicErrorResponse" if speaks_anthropic(path) else "ErrorResponse")}
    content = {"application/json": {"schema": schema}}
    return {
        "4XX": {"description": "The request is refused.", "content": content},
        "5XX": {"description": "The server cannot answer it now, or failed.", "content": content},
    }
