"""A replica as the planner predicts it and the simulator runs it: the time of its steps, its memory, its links."""

from __future__ import annotations

from typing import Annotated

import msgspec

from kvarn.costs.speculation_model import SpeculationModel
from kvarn.costs.step_times import StepTimes


class Distribution(msgspec.Struct, frozen=True):
    """A measured quantity, by its values at equally spaced probabilities from 0 to 1 (linear between them)."""

    values: tuple[float, ...] = (0.0,)

    def at(self, probability: float) -> float:
        """The quantile of a probability in 0 to 1."""
        position = probability * (len(self.values) - 1)
        low = min(int(position), max(0, len(self.values) - 2))
        high = min(low + 1, len(self.values) - 1)
        return self.values[low] + (position - low) * (self.values[high] - self.values[low])

    @property
    def is_zero(self) -> bool:
        return not any(self.values)


class LinkModel(msgspec.Struct, frozen=True, kw_only=True):
    """A connection between two places where KV blocks are."""

    bytes_per_s: float
    latency_s: float = 0.0

    def seconds(self, num_bytes: float) -> float:
        return self.latency_s + num_bytes / self.bytes_per_s


class ReplicaModel(msgspec.Struct, frozen=True, kw_only=True):
    """One replica of a model on a kind of device: all of its ranks together."""

    step_times: StepTimes
    """Seconds of the executor's work."""
    overhead_s: Distribution = Distribution()
    """Seconds between two steps: the scheduler, the sockets, what else the machine does."""
    kv_blocks: int
    block_bytes: int
    """Bytes of a block's keys and values, in all layers and ranks."""
    max_context_length: int
    devices: int = 1
    start_s: Distribution = Distribution()
    """Seconds from the order to start until it is ready."""
    warm_start_s: Distribution | None = None
    """The same of a process that waits in the warm pool; None: as any other."""
    host_link: LinkModel | None = None
    """Between its cache and the main memory of its host; None: the host keeps no blocks."""
    peer_link: LinkModel | None = None
    """Between it and a replica that computes prompts for it."""
    answer_s: Distribution = Distribution()
    """Seconds that a request spends outside the engine before its first token: gateway, tokenizer, sockets."""
    gateway_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Seconds of `answer_s` before the engine, for which a request keeps a process of the gateway busy: requests that
    come together take longer."""
    source: str = ""
    """Origin of the figures: a row of the device table, the name of a calibration."""
    error: float | None = None
    """Relative error of a step's time, at the 95th percentile of the steps it was not fitted on."""
    speculation: SpeculationModel | None = None
    """Its proposer; None: it guesses no tokens, whatever the model's settings."""
    disk_link: LinkModel | None = None
    """Between the main memory of its host and the disk; None: no blocks are kept there."""
