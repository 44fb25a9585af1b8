"""Routes that answer with JSON, and the OpenAPI document: FastAPI's own, with the schemas of bodies and answers and the
errors that all operations have."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Annotated, Any, Final, get_origin, get_type_hints

from fastapi import APIRouter, Depends, FastAPI, Query, params
from fastapi.routing import APIRoute
from msgspec.json import schema_components
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from kvarn.gateway.answer import json_response
from kvarn.gateway.body import JsonBody
from kvarn.gateway.query import QueryModel
from kvarn.wire.dialects import DIALECTS, dialect_of
from kvarn.wire.openai.common import RequestModel

_REF = "#/components/schemas/{name}"
_ANSWER = "Answer.{name}"  # name of an answer's schema: some bodies have the same names
_SECURITY_SCHEMES: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key. Servers in open mode need none."},
    "x-api-key": {
        "type": "apiKey",
        "in": "header",
        "name": "x-api-key",
        "description": "API key in the header of Anthropic's clients.",
    },
}

EVENTS: Final = {"responses": {"200": {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}}
"""`openapi_extra` of a route that answers with events where `stream` is true."""

_ERROR_SCHEMAS = {dialect.error_schema["title"]: dict(dialect.error_schema) for dialect in DIALECTS}


class JsonRoute(APIRoute):
    """A route whose function takes pydantic models (a `QueryModel` is the query, a `RequestModel` the JSON body) and
    returns what msgspec encodes; the annotation of what it returns is the answer's schema.

    One that returns a `Response`, or plain data, names the schema beside it: `Annotated[Response, ChatCompletion]`.
    (FastAPI's own bodies are not bounded, and its response models take tens of microseconds to check and encode.)
    """

    def __init__(self, path: str, endpoint: Callable[..., Awaitable[Any]], **options: Any) -> None:
        hints = get_type_hints(endpoint, include_extras=True)
        answer = hints["return"]
        if get_origin(answer) is Annotated:
            answer = answer.__metadata__[0]
        self.answer = None if isinstance(answer, type) and issubclass(answer, Response) else answer

        @functools.wraps(endpoint)
        async def respond(*args: Any, **arguments: Any) -> Response:
            made = await endpoint(*args, **arguments)
            return made if isinstance(made, Response) else json_response(made)

        signature = inspect.signature(endpoint)
        parameters = [each.replace(annotation=_read_by(hints[each.name])) for each in signature.parameters.values()]
        respond.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        super().__init__(path, respond, **{**options, "response_model": None})


def json_router(prefix: str, tag: str, dependencies: Sequence[params.Depends] = ()) -> APIRouter:
    return APIRouter(prefix=prefix, tags=[tag], route_class=JsonRoute, dependencies=dependencies)


def _read_by(hint: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, QueryModel):
        return Annotated[hint, Query()]
    if isinstance(hint, type) and issubclass(hint, RequestModel):
        return Annotated[hint, Depends(JsonBody(hint))]
    return hint


def extend_openapi(app: FastAPI, routes: Collection[JsonRoute], public: Collection[str]) -> None:
    """Add the schemas of bodies, answers and errors, and the API key, to the application's OpenAPI document, made when
    first asked for. `public` are the paths that need no key."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = make()
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own 422; ours is a 400
                schemas.pop(name, None)
            schemas.update(_ERROR_SCHEMAS | _add_schemas(document["paths"], routes))
            document["components"]["securitySchemes"] = _SECURITY_SCHEMES
            for path, operations in document["paths"].items():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
                    operation["responses"].update(_errors(path))
                    operation["security"] = [] if path in public else [{name: []} for name in _SECURITY_SCHEMES]
                    for parameter in operation.get("parameters", ()):
                        _simplify(parameter)
        return make()

    app.openapi = openapi  # type: ignore[method-assign]


def _add_schemas(paths: dict[str, Any], routes: Collection[JsonRoute]) -> dict[str, Any]:
    """Put references to the schemas of bodies and answers into the operations; returns the schemas by name."""
    operations = [
        (paths[route.path_format][method.lower()], route)
        for route in routes
        if route.include_in_schema
        for method in route.methods or ()
    ]
    bodies = [(operation, body) for operation, route in operations if (body := _body_of(route)) is not None]
    models: Any = [(model, "validation") for model in dict.fromkeys(body for _, body in bodies)]
    _, of_bodies = models_json_schema(models, ref_template=_REF.format(name="{model}"))
    for operation, body in bodies:
        schema = {"$ref": _REF.format(name=body.__name__)}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    answers = [(operation, route.answer) for operation, route in operations if route.answer is not None]
    schemas, of_answers = schema_components([answer for _, answer in answers], ref_template=_REF.format(name=_ANSWER))
    for (operation, _), schema in zip(answers, schemas, strict=True):
        operation["responses"]["200"]["content"]["application/json"] = {"schema": schema}
    definitions: dict[str, Any] = of_bodies.get("$defs", {})
    return definitions | {_ANSWER.format(name=name): schema for name, schema in of_answers.items()}


def _body_of(route: APIRoute) -> Any:
    calls = (dependency.call for dependency in route.dependant.dependencies)
    return next((call.model for call in calls if isinstance(call, JsonBody)), None)


def _simplify(parameter: dict[str, Any]) -> None:
    """A parameter is left out, never null; an object is given as `name[key]=`."""
    schema = parameter["schema"]
    if "anyOf" in schema:
        schema.update(next(kind for kind in schema.pop("anyOf") if kind.get("type") != "null"))
    if schema.get("default", 0) is None:
        del schema["default"]
    if schema.get("type") == "object" or "$ref" in schema:
        parameter |= {"style": "deepObject", "explode": True}


def _errors(path: str) -> dict[str, Any]:
    schema = {"$ref": _REF.format(name=dialect_of(path).error_schema["title"])}
    content = {"application/json": {"schema": schema}}
    return {
        "4XX": {"description": "The request is refused.", "content": content},
        "5XX": {"description": "The server cannot answer it now, or failed.", "content": content},
    }
