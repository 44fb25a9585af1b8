"""Seconds of a step on a device that was never timed: the bytes and operations of `kvarn.costs` at stated efficiencies.

A step is a sum. Reading weights and multiplying overlap in part, so they count as the root of the sum of their squares;
attention over the cache, attention of prompts, launches and exchanges between ranks come on top:

    sqrt(weights read^2 + products^2) + cache read + prompts' attention + layers * launch + prompt tokens * host + links
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kvarn.costs.decoder import DecoderCosts
from kvarn.costs.step_times import StepShape, StepTimes, typical_steps
from kvarn.engine.step_time import StepTimeModel
from kvarn.planner.answer import Layout
from kvarn.planner.devices import Device
from kvarn.planner.efficiency import Efficiency, efficiency_of
from kvarn.planner.request import WeightFormat
from kvarn.shapes.attention import AttentionKind
from kvarn.shapes.decoder import DecoderShape

_ACTIVATION_BYTES = 2  # of a number that ranks exchange


@dataclass(frozen=True, slots=True)
class StepSeconds:
    weights: float
    """Reading weights and multiplying."""
    reading: float  # of the weights alone
    products: float  # of the multiplication alone
    cache: float
    attention: float
    launches: float
    host: float
    links: float

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.attention + self.launches + self.host + self.links


@dataclass(frozen=True)
class DeviceModel:
    """A model on devices: `costs` and `shape` are those of the whole model."""

    device: Device
    layout: Layout
    costs: DecoderCosts
    shape: DecoderShape
    given: Efficiency | None = None
    """Efficiencies in place of those of its kind of device."""

    @property
    def efficiency(self) -> Efficiency:
        return self.given or efficiency_of(self.device)

    def step(self, step: StepShape) -> StepSeconds:
        """Seconds of a step. All stages of a pipeline count: a step goes through one after the other."""
        efficiency, weights, ranks = self.efficiency, self._held, self.layout.tensor_parallel
        bandwidth, peak = self.device.bytes_per_s, self.device.operations_per_s
        rows = step.decode_rows + step.proposals
        work = self.costs.step(
            tokens=step.num_tokens, logits_rows=rows + (step.prefill_tokens > 0), kv_tokens=0, pairs=0
        )
        reading = work.weight_bytes / (efficiency.read[weights] * bandwidth * ranks)
        products = work.operations / (efficiency.products[weights] * self._peak(weights, peak) * ranks)
        cache_bytes = work.kv_bytes + self._cache_bytes(step)
        return StepSeconds(
            weights=math.hypot(reading, products),
            reading=reading,
            products=products,
            cache=cache_bytes * self._copies / (efficiency.cache[self.layout.kv_dtype] * bandwidth * ranks),
            attention=self._prompt_pairs(step) / (efficiency.attention * peak * ranks),
            launches=self.shape.num_layers * (efficiency.layer_s + (efficiency.uncaptured_s if ranks > 1 else 0.0)),
            host=step.prefill_tokens * efficiency.prompt_token_s,
            links=self._links_s(step.num_tokens, efficiency),
        )

    def seconds(self, step: StepShape) -> float:
        return self.step(step).total

    def floor_s(self, step: StepShape) -> float:
        """The least seconds: bytes at the vendor's bandwidth or operations at its peak, on all ranks."""
        rows = step.decode_rows + step.proposals
        work = self.costs.step(
            tokens=step.num_tokens, logits_rows=rows + (step.prefill_tokens > 0), kv_tokens=0, pairs=0
        )
        num_bytes = work.num_bytes + self._cache_bytes(step) * self._copies
        operations = work.operations + self._prompt_pairs(step)
        ranks, peak = self.layout.tensor_parallel, self._peak(self._held, self.device.operations_per_s)
        return max(num_bytes / self.device.bytes_per_s, operations / peak) / ranks

    def compute_bound_batch(self) -> float:
        """Decoding sequences from which on products take longer than reading the weights."""
        return 1.0 + bisect_left(range(1, 1 << 16), True, key=self._is_compute_bound)

    def step_times(self, steps: Sequence[StepShape] = ()) -> StepTimes:
        """The linear form that engine, admission and simulator use, fitted to typical steps and to `steps`."""
        shapes = [*typical_steps(), *steps]
        return StepTimeModel(expected=[(shape, self.seconds(shape)) for shape in shapes]).times

    def fit_error(self, times: StepTimes, steps: Sequence[StepShape]) -> float:
        """Mean relative difference between the linear form and this model over some steps."""
        apart = [abs(times.seconds(shape) / self.seconds(shape) - 1) for shape in steps]
        return sum(apart) / max(1, len(apart))

    @cached_property
    def _kinds(self) -> Counter[AttentionKind]:
        return Counter(layer.attention for layer in self.shape.layers)

    @property
    def _copies(self) -> int:
        return self.shape.cache_copies(self.layout.tensor_parallel)

    @property
    def _held(self) -> WeightFormat:
        """The format of most weights: quantised at load, or as a quantised checkpoint has them."""
        if self.layout.weights != "plain" or self.costs.bits > 12:
            return self.layout.weights
        return "int8" if self.costs.bits > 6 else "int4"

    def _peak(self, weights: WeightFormat, peak: float) -> float:
        """Peak of the arithmetic that the weights are multiplied in: processors multiply quantised ones as integers."""
        if self.device.kind == "cpu" and weights in ("int8", "int4") and self.device.int8_tflops:
            return 1e12 * self.device.int8_tflops.value
        return peak

    def _is_compute_bound(self, rows: int) -> bool:
        seconds = self.step(StepShape(decode_rows=rows))
        return seconds.products >= seconds.reading

    def _cache_bytes(self, step: StepShape) -> float:
        """Bytes of keys and values that decoding rows read; a window reads no more than its tokens."""
        if step.decode_rows == 0:
            return 0.0
        context = step.decode_context / step.decode_rows
        per_row = sum(
            layers * min(context, kind.sliding_window or context) * kind.cache_bytes_per_token(self.layout.kv_dtype)
            for kind, layers in self._kinds.items()
        )
        return step.decode_rows * per_row

    def _prompt_pairs(self, step: StepShape) -> float:
        """Operations of prompts' attention."""
        return sum(
            layers
            * min(step.prefill_pairs, (kind.sliding_window or math.inf) * max(1, step.prefill_tokens))
            * kind.operations_per_pair
            for kind, layers in self._kinds.items()
        )

    def _links_s(self, tokens: int, efficiency: Efficiency) -> float:
        """Seconds of the exchanges of a step's ranks.

        Ranks that share layers add their parts up in a binary tree, twice a layer, or send tokens to their experts and
        back; stages hand activations on.
        """
        layout = self.layout
        if layout.devices == 1:
            return 0.0
        rate = efficiency.link * 1e9 * (self.device.link_gb_s.value if self.device.link_gb_s else 1.0)
        sent = tokens * self.shape.hidden_size * _ACTIVATION_BYTES / rate
        exchanges = 2.0 * self.shape.num_layers * math.ceil(math.log2(layout.tensor_parallel))
        routed = 0.0
        if layout.expert_parallel and layout.tensor_parallel > 1:
            moe = self.shape.num_moe_layers
            exchanges += 2.0 * moe - moe * math.ceil(math.log2(layout.tensor_parallel))
            routed = 2.0 * moe * max(0, self.shape.experts_per_token - 1) * sent / layout.tensor_parallel
        exchanges += layout.pipeline_parallel - 1
        return exchanges * (efficiency.exchange_s + sent) + routed
