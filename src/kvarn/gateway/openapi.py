"""The OpenAPI document: FastAPI's list of operations, with the bodies that the routes read themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_REF = "#/components/schemas/{model}"


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads a JSON body of this model by itself."""
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def describe(app: FastAPI, bodies: list[type[BaseModel]]) -> None:
    """Add the schemas of the request bodies to the application's OpenAPI document, made when first asked for."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = make()
            _, definitions = models_json_schema([(model, "validation") for model in bodies], ref_template=_REF)
            document["components"] = {"schemas": definitions["$defs"]}
            for operations in document["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)  # FastAPI's own; ours is a 400 in OpenAI's shape
        return make()

    app.openapi = openapi  # type: ignore[method-assign]
