"""Sentences of a plan: why so many replicas, what limits them, why nothing does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvarn.planner.capacity import OperatingPoint
from kvarn.planner.request import SloRequest
from kvarn.planner.settings import MOST_REPLICAS
from kvarn.planner.sizing import SizedReplica

if TYPE_CHECKING:
    from kvarn.planner.candidates import Group

_LIMITS = {
    "cache": "the KV cache is full",
    "max_num_seqs": "more sequences run than `max_num_seqs`",
    "steps": "answers are written more slowly than requests arrive",
    "prompts": "prompts arrive faster than they are computed",
}
_NOUNS = {"serve": "replica", "prefill": "prefill replica", "decode": "decode replica"}


def milliseconds(seconds: float) -> str:
    if math.isinf(seconds):
        return "endless"
    return f"{1000 * seconds:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def percentile_name(slo: SloRequest) -> str:
    """The percentile of the targets, such as p95."""
    return f"p{100 * slo.percentile:g}"


def why_not(replica: SizedReplica, most_devices: int) -> str:
    """A sentence that says what no number of replicas mends."""
    most = max(1, most_devices // replica.layout.devices)
    capacity = replica.capacity(most)
    slo, point = replica.request.slo, capacity.at(1e-6, most)
    match capacity.limit(1e-6, most):
        case "tpot":
            step, target = milliseconds(point.tpot_s), milliseconds(slo.tpot_s)
            return f"a step of one sequence takes {step}, more than the TPOT target of {target}"
        case "ttft":
            return (
                f"an idle replica's TTFT is {milliseconds(point.ttft_s)} at {percentile_name(slo)}, more than the "
                f"target of {milliseconds(slo.ttft_s)}"
            )
        case "":
            return f"more than {most_devices:,} devices are needed"
        case limit:
            return _LIMITS[limit]


def reasons_for(groups: tuple[Group, ...]) -> Iterator[str]:
    """Reasons of a deployment, the most important first."""
    for group in groups:
        yield _count_reason(group)
    replica = groups[-1].replica
    if len(groups) == 1:
        yield from _size_reasons(groups[0])
    if len(groups) > 1 and not is_one_pair(groups):
        yield "Kvarn runs one pair of prefill and decode engines on one machine: more is for comparison."
    if replica.device.engine == "no":
        yield "Kvarn has no kernels for this device: figures are those of an engine as efficient as it is on an H100."
    elif replica.device.engine == "runs":
        yield "Kvarn runs on this device, but was not timed there."
    if replica.layout.devices > 1:
        yield "Steps of several devices were never timed: exchanges and launches are assumed."
    longest, planned = replica.memory.model.spec.max_context_length, replica.memory.cache.max_context_length
    if planned < longest:
        yield f"The longest context is {planned:,} tokens, not the model's {longest:,}."


def is_one_pair(groups: tuple[Group, ...]) -> bool:
    """Whether prefill and decode have one engine each, both on one machine."""
    device, devices = groups[0].replica.device, sum(group.devices for group in groups)
    is_one_machine = device.kind == "cpu" or devices <= device.most_in_a_node  # most have two sockets
    return [group.count for group in groups] == [1, 1] and is_one_machine


def _size_reasons(group: Group) -> Iterator[str]:
    """Sentences that follow from the number of replicas."""
    if group.count == 1:
        yield "While a single replica restarts, nothing answers; a second one costs as much again."
    machine = group.replica.device.most_in_a_node
    machines = math.ceil(group.count / max(1, machine // group.replica.layout.devices))
    if machines > 1 and machine > 1:
        yield f"They take {machines:,} machines of {machine} devices: a fleet starts replicas on more than one."
    if group.count > MOST_REPLICAS:
        servers = math.ceil(group.count / MOST_REPLICAS)
        yield f"A server has {MOST_REPLICAS} replicas of a model at most: {servers} servers share the traffic."


def _count_reason(group: Group) -> str:
    replica, rate, noun = group.replica, group.planned_rps, _NOUNS[group.role]
    headroom = replica.request.choices.headroom
    at = f" at {rate:,.7g} requests/s (with {headroom:.0%} headroom)" if headroom else ""
    slo, capacity = replica.request.slo, replica.capacity(group.count, group.role)
    full = capacity.capacity(group.count)
    point = capacity.at(full * 1.001 + 1e-9, group.count)
    bound = _missed(capacity.limit(full * 1.001 + 1e-9, group.count), point, slo)
    if group.count == 1:
        return f"One {noun} is enough: it serves up to {full:,.1f} requests/s. Beyond that, {bound}."
    fewer = group.count - 1
    with_fewer = replica.capacity(fewer, group.role)
    missed = _missed(with_fewer.limit(rate, fewer), with_fewer.at(rate, fewer), slo)
    return (
        f"{group.count} {noun}s: with {fewer}, {missed}{at}. They serve up to {full:,.1f} requests/s; "
        f"beyond that, {bound}."
    )


def _missed(limit: str, point: OperatingPoint, slo: SloRequest) -> str:
    name, target = percentile_name(slo), {"ttft": slo.ttft_s, "tpot": slo.tpot_s}.get(limit, 0.0)
    if target:
        value = point.ttft_s if limit == "ttft" else point.tpot_s
        return f"{limit.upper()} is {milliseconds(value)} at {name} (target {milliseconds(target)})"
    return _LIMITS.get(limit, "the targets are missed")
