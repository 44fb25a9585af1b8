"""The answer of a plan: ranked candidates, each number a `Quantity`; and why others do not do."""

from __future__ import annotations

import msgspec

from kvarn.costs.replica_model import ReplicaModel
from kvarn.planner.quantity import Part, Quantity
from kvarn.planner.request import WeightFormat
from kvarn.shapes import KvDtype


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """One replica: its device, how the model is divided among devices, how weights and cache are held."""

    device: str
    """Name in the device table."""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: bool = False
    weights: WeightFormat = "plain"
    kv_dtype: KvDtype = "bfloat16"
    host_gib: float = 0.0
    """Main memory for blocks that the cache gives up; 0: none."""

    @property
    def devices(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas that do the same work."""

    role: str
    """`serve`: whole requests; `prefill`: prompts alone; `decode`: answers alone."""
    replicas: int
    devices: int
    """Devices of all replicas together."""
    capacity_rps: Quantity
    """Largest rate that the replicas serve within the targets."""
    utilisation: Quantity
    """Part of the rate at which the queue would grow without end."""
    batch: Quantity
    """Sequences that a replica decodes at once, on average."""


class Money(msgspec.Struct, frozen=True, kw_only=True):
    """Dollars of a candidate at the request's rate."""

    device_hour: Quantity
    """One device for an hour."""
    devices: Quantity
    """All devices for an hour."""
    services: Quantity
    """Egress, storage and the rest for an hour."""
    total: Quantity
    """Both, for an hour."""
    per_million_tokens: Quantity
    """A million tokens, inputs and outputs alike, services included."""
    per_million_input: Quantity
    """A million input tokens, by their part of the engine's time."""
    per_million_output: Quantity
    """A million output tokens, by their part of the engine's time."""
    full_per_million_output: Quantity
    """A million output tokens if they bear the devices' whole price, and these are as busy as the targets allow."""
    api_hour: Quantity | None = None
    """The same traffic at the API's price, for an hour."""
    break_even_tokens_per_day: Quantity | None = None
    """Tokens a day, inputs and outputs, from which on these replicas cost less than the API. None: no API's price."""
    energy: Quantity | None = None
    """kWh for a million tokens."""
    power: Quantity | None = None
    """Kilowatts of the devices."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment that meets the targets."""

    name: str
    layout: Layout
    is_served: bool
    """Whether this version of Kvarn runs it."""
    pools: tuple[Pool, ...]
    devices: int
    memory: tuple[Part, ...]
    """Bytes of one device, the fullest; the parts add up to the memory that the engine may take."""
    kv_tokens: Quantity
    """Tokens that one replica's KV cache holds."""
    users: Quantity
    """Sequences of the longest context that the cache holds at once."""
    largest_batch: Quantity
    """Sequences of the traffic's mean length that a replica holds at once."""
    max_context_length: int
    decode_step: tuple[Part, ...]
    """Seconds of a step that decodes the mean batch, by part."""
    prefill: tuple[Part, ...]
    """Seconds of the mean prompt alone, by part."""
    decode_floor: Quantity
    """The least seconds of a step of one sequence: its bytes at the vendor's bandwidth."""
    prefill_floor: Quantity
    """The least seconds of the mean prompt."""
    compute_bound_batch: Quantity
    """Sequences from which on a decode step computes longer than it reads weights."""
    ttft: Quantity
    tpot: Quantity
    """Both at the percentile of the targets."""
    throughput: Quantity
    """Output tokens a second that the deployment gives at the request's rate."""
    money: Money
    reasons: tuple[str, ...]
    """Sentences: why it stands where it stands, what limits it."""
    settings: dict[str, object]
    """The entry of `models` that serves so."""
    replica: ReplicaModel
    """For the simulator."""


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    layout: Layout
    reason: str


class CostPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Cost at another rate, with as many replicas as that needs."""

    rate_rps: float
    devices: int
    dollars_per_hour: float
    dollars_per_million_tokens: float


class LatencyPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies of the same replicas at another rate, at the percentile of the targets."""

    rate_rps: float
    ttft_s: float
    tpot_s: float


class Curves(msgspec.Struct, frozen=True, kw_only=True):
    candidate: str
    cost: tuple[CostPoint, ...]
    latency: tuple[LatencyPoint, ...]


class TrainingJob(msgspec.Struct, frozen=True, kw_only=True):
    """A training job on as few devices as have room for it."""

    name: str
    device: str
    devices: int
    """The fewest, a power of two; 0: no number of them does."""
    peak: Quantity | None = None
    """Most bytes of a device that are held at once."""
    parts: tuple[Part, ...] = ()
    """Bytes held throughout."""
    update: tuple[Part, ...] = ()
    """Bytes held while weights are updated."""
    rollout: tuple[Part, ...] = ()
    """Bytes held while answers are written, which is not at the same time."""
    reason: str = ""
    """Why no number of devices does."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer. `version` changes when a field changes its meaning or goes."""

    version: int = 1
    model: str
    model_facts: tuple[Part, ...]
    request: dict[str, object]
    """The `PlanRequest`, as JSON holds it."""
    candidates: tuple[Candidate, ...]
    """The cheapest first; empty: nothing fits, and `rejected` says why."""
    rejected: tuple[Rejection, ...]
    curves: tuple[Curves, ...] = ()
    training: tuple[TrainingJob, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences that hold for the whole answer."""
