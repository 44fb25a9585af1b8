"""The question of a plan: a model, traffic, targets, devices, prices. Pure data: nothing in it is read from a disk."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from kvarn.config.section import Section
from kvarn.shapes import KvDtype

WeightFormat = Literal["plain", "int8", "fp8", "int4"]
"""Weights as they are held: as the checkpoint has them, or quantised while the model is loaded."""

Tokens = Annotated[float, Field(ge=1, le=10_000_000)]
Positive = Annotated[float, Field(gt=0, lt=1e12)]
NotNegative = Annotated[float, Field(ge=0, lt=1e12)]
Share = Annotated[float, Field(ge=0, lt=1)]


class TrafficRequest(Section):
    """Arrivals and lengths of the requests that a deployment answers."""

    rate_rps: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Requests a second in the busiest period that must keep the targets."""

    input_tokens: Tokens | tuple[Tokens, ...] = 1024.0
    """Tokens of a prompt: their mean, or the lengths at equally spaced probabilities from 0 to 1."""

    output_tokens: Tokens | tuple[Tokens, ...] = 256.0
    """Tokens of an answer, likewise."""

    length_variation: Annotated[float, Field(ge=0, le=4)] = 1.0
    """Standard deviation of lengths given by their mean, over that mean (log-normal)."""

    cached_share: Share = 0.0
    """Part of the prompts' tokens that a prefix cache with room for everything would find."""

    cached_tokens: Annotated[float, Field(ge=0, le=1e13)] = 0.0
    """Tokens that such a cache would hold at once."""

    burstiness: Annotated[float, Field(ge=0, le=100)] = 1.0
    """Squared coefficient of variation of the time between arrivals; 1: a Poisson process."""

    source: str = ""
    """Origin of these figures: a preset, a trace; empty: given by the user."""

    @field_validator("input_tokens", "output_tokens")
    @classmethod
    def _some_lengths(cls, value: float | tuple[float, ...]) -> float | tuple[float, ...]:
        if isinstance(value, tuple):
            if not 2 <= len(value) <= 1001:
                raise ValueError("lengths by probability are 2 to 1001 numbers; for a single length give a number")
            if any(low > high for low, high in pairwise(value)):
                raise ValueError("lengths by probability must not fall")
        return value


class SloRequest(Section):
    """Latency targets that requests shall meet."""

    ttft_s: Positive = 2.0
    """Time to first token, seconds."""

    tpot_s: Positive = 0.2
    """Time per output token after the first, seconds: a request's mean."""

    percentile: Annotated[float, Field(ge=0.5, le=0.999)] = 0.95
    """Part of the requests that meets each of them."""


class MoneyRequest(Section):
    """Prices, and what stands beside the devices in the bill."""

    prices: dict[str, Positive] = Field(default_factory=dict)
    """Dollars an hour for one device, by its name, in place of the table's."""

    owned: bool = False
    """Count devices as bought, by their list prices, in place of rent."""

    services_share: Annotated[float, Field(ge=0, le=5)] = 0.4
    """Egress, storage, load balancers and the rest, as a part of the devices' price."""

    api_price: tuple[NotNegative, NotNegative] | None = None
    """Dollars for a million input and a million output tokens of an API to compare with."""


class Choices(Section):
    """Configurations to consider; None: all that the engine has on the device."""

    weights: tuple[WeightFormat, ...] | None = None
    """Formats of the weights. None: as the checkpoint has them, and 8 bits."""

    kv_dtypes: tuple[KvDtype, ...] | None = None
    """Types of the KV cache. None: bfloat16, and 8 bits."""

    tensor_parallel: tuple[Literal[1, 2, 4, 8], ...] | None = None
    """Numbers of devices that share each layer."""

    pipeline_parallel: tuple[Annotated[int, Field(ge=1, le=64)], ...] | None = None
    """Numbers of stages."""

    disaggregation: bool = True
    """Consider prompts in engines of their own."""

    host_gib: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Main memory of a replica for blocks that its cache gives up, in GiB; 0: none."""

    headroom: Annotated[float, Field(ge=0, le=0.9)] = 0.2
    """Part of a deployment's capacity that stays free: for the error of the plan, and for a replica that restarts."""

    max_devices: Annotated[int, Field(ge=1, le=1_000_000)] = 100_000
    """Devices in all, at most."""


class TrainingRequest(Section):
    """Training jobs whose memory is wanted too."""

    jobs: Annotated[tuple[str, ...], Field(max_length=16)] = ()
    """Such as `sft`, `sft-lora`, `dpo-qlora`, `ppo`, `grpo`."""

    zero: Literal[0, 1, 2, 3] = 3
    """Stage of ZeRO; 3 is FSDP."""

    sequences: Annotated[int, Field(ge=1, le=65536)] = 1
    """Sequences of a device in one pass."""

    length: Annotated[int, Field(ge=1, le=10_000_000)] = 4096
    """Tokens of a sequence."""


class PlanRequest(Section):
    """All that a plan follows from."""

    model: str | dict[str, Any]
    """Name of a preset, or the content of a config.json."""

    name: str = ""
    """Name of the model in the answer; empty: the preset's."""

    devices: Annotated[tuple[str, ...], Field(min_length=1, max_length=32)] = ("h100",)
    """Devices to compare, by their names in the table."""

    traffic: TrafficRequest = TrafficRequest()
    slo: SloRequest = SloRequest()
    money: MoneyRequest = MoneyRequest()
    choices: Choices = Choices()
    training: TrainingRequest = TrainingRequest()

    calibration: dict[str, Any] | None = None
    """A modelled replica that was measured (`kvarn bench profile`), in place of the device model: its steps' times and
    its KV cache. The device gives the price alone, and memory by part."""

    max_context_length: Annotated[int, Field(ge=16, le=100_000_000)] | None = None
    """Longest prompt and answer together that a replica must take. None: the model's, or less where that is more than
    the traffic needs and does not fit."""

    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Part of a device's memory that the engine may take."""

    @model_validator(mode="after")
    def _named(self) -> PlanRequest:
        if isinstance(self.model, str) and not self.model:
            raise ValueError("model must be the name of a preset or the content of a config.json")
        return self
