"""The form that a chat asks its answer to have."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from kvarn.wire.openai.common import JsonSchema, RequestModel, Strings, disagreement

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class JsonSchemaFormat(RequestModel):
    name: FunctionName
    description: str | None = None
    schema_: JsonSchema = Field(True, alias="schema")
    strict: bool | None = None  # it is always kept to


class ResponseFormat(RequestModel):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: Strings | None = None

    @model_validator(mode="after")
    def _fields_agree(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            where = "response_format.json_schema"
            raise disagreement(f"{where!r} goes with the type 'json_schema', which needs it.", where)
        tagged = self.structures is not None, self.triggers is not None
        if tagged != (self.type == "structural_tag",) * 2:
            where = "response_format.structures"
            raise disagreement(
                "'structures' and 'triggers' go with the type 'structural_tag', which needs both.", where
            )
        return self
