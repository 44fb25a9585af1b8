"""One replica sized: its memory, the time of its steps, and the rate that so many of them serve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import msgspec

from kvarn.config.engine import EngineConfig
from kvarn.costs.replica_model import Distribution, LinkModel, ReplicaModel
from kvarn.costs.step_times import StepShape, StepTimes
from kvarn.planner.answer import Layout
from kvarn.planner.capacity import ReplicaCapacity
from kvarn.planner.device_model import DeviceModel
from kvarn.planner.devices import Device
from kvarn.planner.efficiency import ErrorBand, efficiency_of, prompt_error, step_error
from kvarn.planner.errors import PlanError
from kvarn.planner.lengths import Workload
from kvarn.planner.memory import MemoryPlan, ModelTooLargeError, ReplicaSetting, decoder_costs, plan_memory
from kvarn.planner.models import PlannedModel
from kvarn.planner.request import PlanRequest, WeightFormat
from kvarn.shapes import BLOCK_SIZE
from kvarn.shapes.packing import Quantization

ANSWER_S = 0.01
"""Seconds of a request in gateway, tokenizer and sockets before its first token; assumed."""
START_S = 20.0
"""Seconds of a replica's start beside reading its weights; assumed."""
READ_BYTES_PER_S = 1e9
"""Rate at which a starting replica reads weights; assumed."""
PREFIX_SHARE = 0.5
"""Part of the KV cache that running sequences leave for prefixes; assumed."""
_HOST_EFFICIENCY = 0.8
_BUDGETS = {"gpu": (2048, 8192), "cpu": (512, 2048)}
_SEQUENCES = {"gpu": (256, 1024), "cpu": (32, 256)}

Role = Literal["serve", "prefill", "decode"]
"""Work of a replica: whole requests, their prompts alone, or their answers alone."""


@dataclass(frozen=True)
class SizedReplica:
    """A replica with the best of the engine's settings that were tried."""

    request: PlanRequest
    device: Device
    layout: Layout
    config: EngineConfig
    memory: MemoryPlan
    model: DeviceModel
    times: StepTimes
    error: ErrorBand
    """Error of the time of a step that decodes."""
    calibrated: ReplicaModel | None = None
    """The replica that was measured, in place of the device model."""

    @cached_property
    def cache(self) -> MemoryPlan:
        """The memory with as many blocks as were measured, where a replica was."""
        if self.calibrated is None:
            return self.memory
        return replace(self.memory, cache=self.memory.cache._replace(num_blocks=self.calibrated.kv_blocks))

    @property
    def kv_tokens(self) -> float:
        return self.cache.kv_tokens.value

    @property
    def kv_bytes_per_token(self) -> float:
        block_bytes = self.memory.block_bytes if self.calibrated is None else self.calibrated.block_bytes
        return block_bytes / BLOCK_SIZE

    @property
    def prompt_error(self) -> ErrorBand:
        """Error of the time of a step with prompts."""
        return prompt_error(self.error) if self.calibrated is None else self.error

    @cached_property
    def host_tokens(self) -> float:
        """Tokens that the main memory of its host keeps."""
        return self.layout.host_gib * 2**30 / max(1.0, self.kv_bytes_per_token)

    def capacity(self, replicas: int, role: Role = "serve") -> ReplicaCapacity:
        """The capacity of one of so many replicas: the more there are, the more prefixes their caches hold."""
        on_device, on_host = self.cached(replicas)
        link = self.device.host_gb_s
        rate = 1e9 * _HOST_EFFICIENCY * (link.value if link else 8.0) * self.layout.devices
        sent = on_host * self.kv_bytes_per_token / rate
        if role == "prefill":
            sent += 2 * (1 - on_device - on_host) * self.kv_bytes_per_token / rate
        return ReplicaCapacity(
            times=self.times,
            config=self.config,
            workload=Workload.of(self.request.traffic, round(on_device + on_host, 6)),
            slo=self.request.slo,
            kv_tokens=self.kv_tokens,
            burstiness=self.request.traffic.burstiness,
            does_prompts=role != "decode",
            does_answers=role != "prefill",
            steps_ahead=0 if self.device.kind == "cpu" else 1,
            answer_s=ANSWER_S if self.calibrated is None else self.calibrated.answer_s.at(0.5),
            transfer_s_per_token=sent,
        )

    def cached(self, replicas: int) -> tuple[float, float]:
        """Parts of the prompts' tokens found on the device, and in the host's memory."""
        traffic = self.request.traffic
        if traffic.cached_share == 0:
            return 0.0, 0.0
        wanted = max(1.0, traffic.cached_tokens / replicas)
        device = min(1.0, PREFIX_SHARE * self.kv_tokens / wanted)
        return traffic.cached_share * device, traffic.cached_share * min(1.0 - device, self.host_tokens / wanted)

    def needed(self, rate: float, most: int, role: Role = "serve") -> int | None:
        """The least number of replicas for a rate; None: no number up to `most` does."""
        if most < 1 or not self.capacity(max(1, most), role).meets(1e-6, max(1, most)):
            return None
        low, high = 0, 1
        while not self.capacity(high, role).meets(rate, high):
            if high >= most:
                return None
            low, high = high, min(2 * high, most)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.capacity(middle, role).meets(rate, middle) else (middle, high)
        return high

    def replica_model(self) -> ReplicaModel:
        if self.calibrated is not None:
            return self.calibrated
        return replica_model(self.memory, self.model, self.times, self.error.value)


def replica_model(memory: MemoryPlan, model: DeviceModel, times: StepTimes, error: float) -> ReplicaModel:
    """A replica on devices of the table. Between steps of a GPU passes no time: the next one is planned before."""
    device, layout = model.device, model.layout
    start_s = START_S + memory.weight_bytes / READ_BYTES_PER_S / layout.devices
    host = device.host_gb_s
    rate = 1e9 * _HOST_EFFICIENCY * (host.value if host else 8.0)
    return ReplicaModel(
        step_times=times,
        kv_blocks=memory.cache.num_blocks,
        block_bytes=memory.block_bytes,
        max_context_length=memory.cache.max_context_length,
        devices=layout.devices,
        start_s=Distribution((0.8 * start_s, start_s, 1.5 * start_s)),
        host_link=LinkModel(bytes_per_s=rate * layout.devices, latency_s=1e-4) if layout.host_gib else None,
        peer_link=LinkModel(bytes_per_s=rate * layout.devices / 2, latency_s=1e-3),
        answer_s=Distribution((ANSWER_S, ANSWER_S)),
        source=f"device table: {device.name}, {efficiency_of(device).note}",
        error=error,
    )


def size(request: PlanRequest, model: PlannedModel, device: Device, layout: Layout) -> SizedReplica:
    """The replica of a layout, with the step's budget and the number of sequences that let it serve most.

    Raises ModelTooLargeError where the memory does not do, PlanError where the model cannot be divided or held so.
    """
    tried = []
    refused: ModelTooLargeError | None = None
    for sequences in _SEQUENCES["cpu" if device.kind == "cpu" else "gpu"]:
        for budget in _BUDGETS["cpu" if device.kind == "cpu" else "gpu"]:
            try:
                tried.append(_sized(request, model, device, layout, budget, sequences))
            except ModelTooLargeError as error:
                refused = refused or error
    if not tried:
        assert refused is not None
        raise refused
    return max(tried, key=lambda each: each.capacity(1).capacity(1))


def _sized(
    request: PlanRequest, model: PlannedModel, device: Device, layout: Layout, budget: int, sequences: int
) -> SizedReplica:
    setting = ReplicaSetting(
        kernels="cpu" if device.kind == "cpu" else "gpu",
        quantization=quantization_of(layout.weights),
        kv_cache_dtype=layout.kv_dtype,
        tensor_parallel=layout.tensor_parallel,
        pipeline_parallel=layout.pipeline_parallel,
        expert_parallel=layout.expert_parallel,
        max_num_seqs=None if model.spec.has_states else sequences,
        token_budget=budget,
        max_context_length=request.max_context_length,
        gpu_memory_utilization=request.gpu_memory_utilization,
    )
    memory = _memory(request, model, setting, int(device.memory_bytes))
    costs = decoder_costs(model, model.forms(setting.kernels, setting.dtype, setting.quantization), layout.kv_dtype)
    on_device = DeviceModel(device, layout, costs, model.spec)
    workload = Workload.of(request.traffic, 0.0)
    steps = list(usual_steps(workload, min(memory.cache.max_num_seqs, memory.cache.num_blocks)))
    times = on_device.step_times(steps)
    config = EngineConfig(
        max_num_seqs=memory.cache.max_num_seqs, token_budget=budget, tpot_target_ms=1000 * request.slo.tpot_s
    )
    error = step_error(device, layout.devices, on_device.fit_error(times, steps))
    measured = calibrated_replica(request)
    if measured is not None:
        between = sum(measured.overhead_s.values) / len(measured.overhead_s.values)
        times = msgspec.structs.replace(measured.step_times, fixed_s=measured.step_times.fixed_s + between)
        error = ErrorBand(measured.error or 0.0, "measured: the calibration's own error")
    return SizedReplica(request, device, layout, config, memory, on_device, times, error, measured)


def calibrated_replica(request: PlanRequest) -> ReplicaModel | None:
    """The measured replica of a request. Raises PlanError where it is none."""
    if request.calibration is None:
        return None
    try:
        measured = msgspec.convert(request.calibration, ReplicaModel)
        if measured.kv_blocks < 1 or not all(seconds >= 0 for seconds in msgspec.structs.astuple(measured.step_times)):
            raise msgspec.ValidationError("it has no KV cache, or times below zero")
    except msgspec.ValidationError as error:
        raise PlanError(f"the calibration is no replica that `kvarn bench profile` wrote: {error}") from None
    return measured


def _memory(request: PlanRequest, model: PlannedModel, setting: ReplicaSetting, device_bytes: int) -> MemoryPlan:
    """Memory with the model's own context, or with the longest that fits if that is enough for the traffic."""
    try:
        return plan_memory(model, setting, device_bytes)
    except ModelTooLargeError as error:
        enough = Workload.of(request.traffic, 0.0).longest
        if request.max_context_length is not None or error.tokens < enough:
            raise
        return plan_memory(model, replace(setting, max_context_length=error.tokens), device_bytes)


def usual_steps(workload: Workload, most_rows: int) -> Iterator[StepShape]:
    """Steps as this traffic makes them: decodes, prompts, and both together."""
    context, prompt = round(workload.context), round(workload.prompt.mean)
    for rows in (8, 32, 128, 256):
        if rows > max(8, most_rows):
            return
        for beside in (0, 256, 1024, 2048):
            step = StepShape(decode_rows=rows, decode_context=rows * context)
            if beside:
                step.add(0, min(beside, max(2, prompt)))
            yield step
    whole = StepShape()
    whole.add(0, max(2, prompt))
    yield whole


def quantization_of(weights: WeightFormat) -> Quantization | None:
    return None if weights == "plain" else weights
