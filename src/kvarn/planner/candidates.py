"""Deployments of sized replicas: how many are needed, what they cost, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvarn.costs.step_times import StepShape
from kvarn.planner.answer import Candidate, Money, Pool
from kvarn.planner.capacity import OperatingPoint
from kvarn.planner.device_model import StepSeconds
from kvarn.planner.efficiency import ErrorBand
from kvarn.planner.layouts import layout_name
from kvarn.planner.lengths import Workload
from kvarn.planner.money import Deployment
from kvarn.planner.quantity import Part, Quantity
from kvarn.planner.reasons import is_one_pair, milliseconds, percentile_name, reasons_for
from kvarn.planner.settings import settings_of
from kvarn.planner.sizing import Role, SizedReplica

QUEUES = (
    "sequences by Little's law and their square root (Halfin and Whitt), prompts as M/G/c (Sakasegawa 1977), one queue "
    "for all replicas"
)
_TTFT_ERROR = 0.45
"""Error of the time to first token: it was under-predicted by as much under load on an H100."""
_TPOT_ERROR = 0.14
"""Error of the time per token beside that of steps: the formulas, beside the simulator; answers of a few tokens have
more."""
_RATE_ERROR = 0.2
"""Error of a rate beside that of steps that decode: the formulas, and prompts, which are less sure."""


@dataclass(frozen=True)
class Group:
    role: Role
    replica: SizedReplica
    count: int

    @property
    def devices(self) -> int:
        return self.count * self.replica.layout.devices

    @property
    def planned_rps(self) -> float:
        """The rate that the replicas are chosen for: the traffic's, and headroom."""
        request = self.replica.request
        return request.traffic.rate_rps / (1 - request.choices.headroom)

    def at(self, rate: float) -> OperatingPoint:
        return self.replica.capacity(self.count, self.role).at(rate, self.count)

    def full_rps(self) -> float:
        return self.replica.capacity(self.count, self.role).capacity(self.count)

    def pool(self, rate: float) -> Pool:
        capacity = self.replica.capacity(self.count, self.role)
        full, saturated = self.full_rps(), self.count * capacity.saturation
        error = math.hypot(self.replica.error.value, _RATE_ERROR)
        return Pool(
            role=self.role,
            replicas=self.count,
            devices=self.devices,
            capacity_rps=Quantity(
                value=full,
                unit="requests/s",
                formula=f"largest rate at which {self.count} x {self.replica.layout.devices} devices meet the targets",
                assumption=QUEUES,
                error=error,
            ),
            utilisation=Quantity(
                value=rate / saturated,
                unit="",
                formula=f"{rate:g} / {saturated:,.1f} requests/s",
                assumption="of the rate that full batches reach, whatever the latency",
                error=error,
            ),
            batch=Quantity(
                value=self.at(rate).rows,
                unit="sequences",
                formula="rate x output tokens x TPOT / replicas (Little's law)",
                error=self.replica.error.value,
            ),
        )


def groups_for(replica: SizedReplica, rate: float, most_devices: int) -> tuple[Group, ...]:
    """Replicas that do whole requests; empty: no number of them meets the targets."""
    count = replica.needed(rate, most_devices // replica.layout.devices)
    return () if count is None else (Group("serve", replica, count),)


def split_groups(replica: SizedReplica, rate: float, most_devices: int) -> tuple[Group, ...]:
    """Replicas that compute prompts, and those that write answers; empty: they do not meet the targets."""
    most = most_devices // replica.layout.devices
    prompts, answers = (replica.needed(rate, most, role) for role in ("prefill", "decode"))
    if prompts is None or answers is None or prompts + answers > most:
        return ()
    groups = Group("prefill", replica, prompts), Group("decode", replica, answers)
    return groups if sum_ttft(groups, rate) <= replica.request.slo.ttft_s else ()


def is_served(groups: tuple[Group, ...]) -> bool:
    return groups[0].replica.device.engine != "no" and (len(groups) == 1 or is_one_pair(groups))


def candidate(groups: tuple[Group, ...], price: Quantity) -> Candidate:
    replica, rate = groups[-1].replica, groups[0].replica.request.traffic.rate_rps
    memory, model = replica.memory, replica.model
    workload = replica.capacity(groups[0].count).workload
    batch = max(1, round(groups[-1].at(rate).rows))
    decode = StepShape(decode_rows=batch, decode_context=round(batch * workload.context))
    single = StepShape(decode_rows=1, decode_context=round(workload.context))
    prompt = _prompt(workload)
    return Candidate(
        name=_name(groups),
        layout=replica.layout,
        is_served=is_served(groups),
        pools=tuple(group.pool(rate) for group in groups),
        devices=sum(group.devices for group in groups),
        memory=memory.parts,
        kv_tokens=replica.cache.kv_tokens,
        users=replica.cache.users(memory.cache.max_context_length),
        largest_batch=replica.cache.largest_batch(workload.context),
        max_context_length=memory.cache.max_context_length,
        decode_step=_step(decode, replica, f"{batch} sequences of {workload.context:,.0f} tokens"),
        prefill=_step(prompt, replica, f"{prompt.prefill_tokens:,} tokens of a prompt, alone"),
        decode_floor=_floor(model.floor_s(single), f"one sequence of {workload.context:,.0f} tokens"),
        prefill_floor=_floor(model.floor_s(prompt), f"{prompt.prefill_tokens:,} tokens of a prompt"),
        compute_bound_batch=Quantity(
            value=model.compute_bound_batch(),
            unit="sequences",
            formula="products take longer than reading the weights",
            error=replica.error.value,
        ),
        ttft=_latency(sum_ttft(groups, rate), replica, "wait + prompt beside decodes + steps under way", _TTFT_ERROR),
        tpot=_latency(
            groups[-1].at(rate).tpot_s,
            replica,
            "a step, and its part of the prompts",
            math.hypot(replica.error.value, _TPOT_ERROR),
        ),
        throughput=Quantity(
            value=rate * workload.output.mean,
            unit="tokens/s",
            formula=f"{rate:g} requests/s x {workload.output.mean:,.0f} tokens",
        ),
        money=_money(groups, price, workload),
        reasons=tuple(reasons_for(groups)),
        settings=settings_of(groups),
        replica=replica.replica_model(),
    )


def sum_ttft(groups: tuple[Group, ...], rate: float) -> float:
    """Time to first token; of a split deployment the prompt's, and a step of the engine that goes on."""
    if len(groups) == 1:
        return groups[0].at(rate).ttft_s
    return groups[0].at(rate).ttft_s + groups[1].at(rate).tpot_s


def _name(groups: tuple[Group, ...]) -> str:
    layout = groups[0].replica.layout
    if len(groups) == 1:
        count = groups[0].count
        return f"{count} replica{'s' if count > 1 else ''} of {layout_name(layout)}"
    return f"{groups[0].count} prefill + {groups[1].count} decode, each {layout_name(layout)}"


def _prompt(workload: Workload) -> StepShape:
    shape = StepShape()
    new = max(2, round(workload.mix.prompt_tokens))
    shape.add(max(0, round(workload.prompt.mean) - new), new)
    return shape


def _step(step: StepShape, replica: SizedReplica, what: str) -> tuple[Part, ...]:
    """Seconds of a step by part: of the device model, or of the times that were measured."""
    error = replica.prompt_error if step.prefill_tokens else replica.error
    if replica.calibrated is None:
        return _parts(replica.model.step(step), replica, error, what)
    times = replica.times
    parts = {
        "fixed": times.fixed_s,
        "rows": times.decode_s(step.decode_rows, 0) - times.fixed_s,
        "KV cache": step.decode_context * times.decode_token_s,
        "prompts": times.prompt_s(step.prefill_tokens, step.prefill_pairs),
    }
    return tuple(
        Part(name, Quantity(value=value, unit="s", formula=what, error=error.value, source="calibration"))
        for name, value in parts.items()
        if value
    )


def _parts(step: StepSeconds, replica: SizedReplica, error: ErrorBand, what: str) -> tuple[Part, ...]:
    rows = (
        (
            "weights",
            step.weights,
            f"read {milliseconds(step.reading)}, products {milliseconds(step.products)}, root of squares",
        ),
        ("KV cache", step.cache, "bytes of keys and values / bandwidth reached"),
        ("attention of prompts", step.attention, "operations / peak reached"),
        ("launches", step.launches, f"{replica.model.shape.num_layers} layers"),
        ("host", step.host, "tokens of prompts"),
        ("links", step.links, "exchanges of ranks and stages"),
    )
    return tuple(
        Part(name, Quantity(value=value, unit="s", formula=f"{what}: {formula}", assumption=error.reason,
                            error=error.value))
        for name, value, formula in rows
        if value
    )  # fmt: skip


def _floor(value: float, what: str) -> Quantity:
    return Quantity(
        value=value,
        unit="s",
        formula=f"{what}: bytes / the vendor's bandwidth, or operations / its peak, the larger",
        error=0.0,
    )


def _latency(value: float, replica: SizedReplica, formula: str, error: float) -> Quantity:
    return Quantity(
        value=value,
        unit="s",
        formula=f"{percentile_name(replica.request.slo)} of: {formula}",
        assumption=QUEUES,
        error=error,
    )


def _money(groups: tuple[Group, ...], price: Quantity, workload: Workload) -> Money:
    replica, rate = groups[-1].replica, groups[0].replica.request.traffic.rate_rps
    times, rows = replica.times, max(1.0, groups[-1].at(rate).rows)
    prompt_s = times.prompt_s(workload.mix.prompt_tokens, workload.mix.prompt_pairs)
    answer_s = workload.output.mean * times.decode_s(rows, rows * workload.context) / rows
    device = replica.device
    return Deployment(
        devices=sum(group.devices for group in groups),
        device_hour=price,
        watts=device.watts.quantity("W") if device.watts else None,
        rate_rps=rate,
        input_tokens=workload.prompt.mean,
        output_tokens=workload.output.mean,
        input_share=prompt_s / (prompt_s + answer_s),
        full_rps=min(group.full_rps() for group in groups),
        error=math.hypot(replica.error.value, _RATE_ERROR),
    ).money(replica.request.money)
