"""Bodies of `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`: vLLM's fields, and ours."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kvarn.wire.openai.common import RequestModel
from kvarn.wire.openai.organization.requests import Name

AdapterName = Annotated[Name, Field(max_length=200)]


class LoadAdapterRequest(RequestModel):
    """`POST /v1/load_lora_adapter`."""

    lora_name: AdapterName
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]
    load_inplace: bool = False
    model: AdapterName | None = None  # ours: the base model, where several are served
    organizations: Annotated[list[AdapterName], Field(max_length=1000)] | None = None  # ours: who may see and use it
    projects: Annotated[list[AdapterName], Field(max_length=1000)] | None = None


class UnloadAdapterRequest(RequestModel):
    """`POST /v1/unload_lora_adapter`."""

    lora_name: AdapterName
    lora_int_id: int | None = None  # of vLLM; names are enough here
