"""Messages between a gateway and the process that simulates its recent traffic with other settings."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kvarn.costs.replica_model import Distribution, ReplicaModel


class RecordedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request as the ledger has it."""

    at_s: float
    """Since the beginning of the window."""
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    project: int
    """Number of the project in the order of their first requests."""
    ttft_s: float | None = None
    total_s: float | None = None


class Changes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings that would be otherwise. None: as it was."""

    replicas: int | None = None
    whole_prompts: bool = False
    """Prompts are computed in one step each: no chunked prefill."""
    kv_cache_dtype: Literal["float32", "bfloat16", "int8", "fp8"] | None = None
    quantization: Literal["int8", "fp8", "int4"] | None = None
    """Format of the weights."""
    device: str | None = None
    """Name in the planner's table."""
    token_budget: int | None = None
    max_num_seqs: int | None = None


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The question: a model's part of the configuration, its replica, its requests, the changes."""

    config: dict[str, Any]
    """`models` with this one alone, and the sections that decide what becomes of its requests."""
    checkpoint: dict[str, Any] | None
    """Its config.json; None: there is none, and bytes are not known."""
    kv_cache_dtype: str
    """Type of the cache as it is."""
    quantization: str
    """Format of the weights as they are, as the model's card names it; empty: as the checkpoint has them."""
    read_bytes_per_s: float
    """Bytes of weights that its device reads in a second; 0: not measured."""
    replica: ReplicaModel
    requests: list[RecordedRequest]
    duration_s: float
    changes: Changes


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of the requests: as measured, or simulated. Quantiles are None where nothing was answered."""

    requests: int
    answered: int
    refused: int
    failed: int
    ttft_s: Distribution | None
    tpot_s: Distribution | None
    total_s: Distribution | None
    within_targets: float | None
    """Part of the requests within the latency targets."""
    utilisation: float | None = None
    """Part of their time for which devices computed."""
    preemptions: int | None = None
    cached_share: float | None = None
    """Part of the prompts' tokens that were found in the cache."""
    device_hours: float | None = None


class Simulated(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The answer: as it was measured, as the simulator has it without the changes, and with them."""

    measured: Side
    before: Side
    after: Side
    ttft_target_s: float
    tpot_target_s: float
    settings: list[str]
    """The settings that were changed, as `path=value`."""
    notes: list[str]
    """Assumptions, and limits of what the simulation knows."""
    logs: tuple[str, str]
    """SHA-256 of both event logs: the same question gives the same."""


class NotSimulated(msgspec.Struct, frozen=True, tag=True):
    """The reason why there is no answer, and what to do."""

    message: str


class Progress(msgspec.Struct, frozen=True):
    """Part of the work that is done, 0 to 1."""

    share: float
