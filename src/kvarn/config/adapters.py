"""Settings of LoRA adapters."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kvarn.config.section import Section

Names = tuple[Annotated[str, Field(min_length=1)], ...]


class AdapterConfig(Section):
    """One adapter that is loaded when the server starts."""

    name: str = Field(min_length=1, max_length=200)
    """Name clients use in the `model` field, alone or behind the model's (`model:name`)."""

    path: str = Field(min_length=1)
    """Directory of a PEFT checkpoint (`adapter_config.json` and `adapter_model.safetensors`), a hub id, or the name of
    a packaged adapter of kvarn-demo (`pirate`, `json`)."""

    organizations: Names | None = None
    """Ids of the organisations that may see and use it. Default: all."""

    projects: Names | None = None
    """Ids of the projects that may see and use it. Default: all of these organisations."""


class LoraConfig(Section):
    """Loading of adapters while the server runs."""

    enabled: bool = True
    """Load adapters when `/v1/load_lora_adapter` asks for it. Requests without one cost nothing either way."""

    directories: Names | None = None
    """Directories below which `/v1/load_lora_adapter` may load adapters. Default: `adapters` in `data_dir`. Packaged
    adapters can always be loaded."""

    max_rank: int | None = Field(None, ge=1)
    """Largest rank of an adapter. One of a larger rank is refused. Default: any."""

    max_cpu_loras: int | None = Field(None, ge=1)
    """Adapters that may be loaded at once. Default: as many as `host_memory_gib` holds."""

    host_memory_gib: float | None = Field(None, gt=0)
    """Memory for loaded adapters in GiB, from which they are copied into blocks of the KV cache when they are used. One
    more adapter that would pass it is refused. Default: a tenth of the machine's memory."""
