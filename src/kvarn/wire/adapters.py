"""Bodies of `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`: vLLM's fields, and ours."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from kvarn.wire.openai.common import RequestModel


def _check_printable(value: str) -> str:
    if not value.isprintable() or not value.strip():
        raise PydanticCustomError("not_printable", "it must be printable text")
    return value


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_check_printable)]


class LoadAdapterRequest(RequestModel):
    """`POST /v1/load_lora_adapter`."""

    lora_name: Name
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]
    load_inplace: bool = False
    model: Name | None = None  # ours: the base model, where several are served
    organizations: Annotated[list[Name], Field(max_length=1000)] | None = None  # ours: who may see and use it
    projects: Annotated[list[Name], Field(max_length=1000)] | None = None


class UnloadAdapterRequest(RequestModel):
    """`POST /v1/unload_lora_adapter`."""

    lora_name: Name
    lora_int_id: int | None = None  # of vLLM; names are enough here
