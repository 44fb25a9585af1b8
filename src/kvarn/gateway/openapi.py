"""The OpenAPI document: FastAPI's list of operations, with the queries and bodies that the routes read themselves, and
the errors that all of them may answer with."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from kvarn.wire.anthropic.errors import speaks_anthropic

_REF = "#/components/schemas/{model}"

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


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads a JSON body of this model by itself."""
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def describe(app: FastAPI, bodies: list[type[BaseModel]]) -> None:
    """Add the schemas of request bodies and of errors to the application's OpenAPI document, made when first asked
    for."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = make()
            _, definitions = models_json_schema([(model, "validation") for model in bodies], ref_template=_REF)
            document["components"] = {"schemas": definitions["$defs"] | _ERRORS}
            for path, operations in document["paths"].items():
                for operation in operations.values():
                    operation["responses"].pop("422", None)  # FastAPI's own; ours is a 400
                    operation["responses"].update(_errors(path))
        return make()

    app.openapi = openapi  # type: ignore[method-assign]


def _errors(path: str) -> dict[str, Any]:
    """What an operation answers with when it refuses a request, or fails."""
    schema = {"$ref": _REF.format(model="AnthropicErrorResponse" if speaks_anthropic(path) else "ErrorResponse")}
    content = {"application/json": {"schema": schema}}
    return {
        "4XX": {"description": "The request is refused.", "content": content},
        "5XX": {"description": "The server cannot answer it now, or failed.", "content": content},
    }
