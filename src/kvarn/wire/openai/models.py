"""Models: `/v1/models` and `/v1/models/{id}`."""

from __future__ import annotations

import msgspec


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """Load of a model's replica."""

    kv_blocks_total: int
    kv_blocks_free: int
    running: int
    waiting: int


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One served model: OpenAI's fields, then readiness and capacity."""

    id: str
    created: int
    object: str = "model"
    owned_by: str = "kvarn"
    root: str | None = None  # vLLM's: where its weights are from
    parent: str | None = None  # vLLM's: the base model of an adapter
    aliases: list[str] = []  # more names that the `model` field of a request may use
    kind: str | None = None  # `generate` or `embed`; None until it is known
    state: str = "starting"
    ready: bool = False
    max_model_len: int | None = None  # prompt and answer together, in tokens (vLLM's name)
    default_sampling_params: dict[str, float | int | None] | None = None
    """Default sampling parameters of requests; None for models that do not generate."""
    capacity: Capacity | None = None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[Model]
    object: str = "list"
