"""From a question to a plan: all configurations sized, those that meet the targets ranked by cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, zip_longest

import msgspec

from kvarn.planner.answer import Candidate, CostPoint, Curves, LatencyPoint, Layout, Plan, Rejection
from kvarn.planner.candidates import Group, candidate, groups_for, is_served, split_groups, sum_ttft
from kvarn.planner.devices import Device, DeviceTable, device_table
from kvarn.planner.errors import PlanError
from kvarn.planner.layouts import layout_name, layouts
from kvarn.planner.lengths import Workload
from kvarn.planner.memory import kv_bytes_per_token
from kvarn.planner.models import PlannedModel, described, preset
from kvarn.planner.money import per_million
from kvarn.planner.quantity import Part, Quantity
from kvarn.planner.reasons import why_not
from kvarn.planner.request import PlanRequest
from kvarn.planner.sizing import calibrated_replica, size
from kvarn.planner.training_jobs import training_jobs
from kvarn.planner.words import rate_text

MAX_CANDIDATES = 10
_MAX_REJECTIONS = 16
_MOST_TIMES = 4.0
"""Candidates that cost more than this many times the cheapest are not shown."""
_CURVES = 3
_RATES = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
_LOADS = (0.05, 0.2, 0.4, 0.55, 0.7, 0.8, 0.88, 0.94, 0.98, 1.0)
_STAGES = (2, 4, 8)


@dataclass(frozen=True)
class _Option:
    groups: tuple[Group, ...]
    price: Quantity

    @property
    def layout(self) -> Layout:
        return self.groups[0].replica.layout

    @cached_property
    def devices(self) -> int:
        return sum(group.devices for group in self.groups)

    @property
    def hourly(self) -> float:
        return self.devices * self.price.value

    @property
    def is_served(self) -> bool:
        return is_served(self.groups)

    @property
    def order(self) -> tuple[object, ...]:
        """The cheapest first; of equal ones the simplest, then the one with most room."""
        layout = self.layout
        changes = (layout.weights != "plain") + (layout.kv_dtype != "bfloat16") + len(self.groups)
        return not self.is_served, self.hourly, changes, layout.devices, -self.full_rps

    @cached_property
    def full_rps(self) -> float:
        return min(group.full_rps() for group in self.groups)

    @cached_property
    def tpot_s(self) -> float:
        return self.groups[-1].at(self.groups[0].replica.request.traffic.rate_rps).tpot_s

    @property
    def kind(self) -> tuple[object, ...]:
        """Options that differ in nothing else than how a replica is divided and how keys and values are held."""
        return self.layout.device, self.layout.weights, len(self.groups)


def plan(request: PlanRequest, table: DeviceTable | None = None, model: PlannedModel | None = None) -> Plan:
    """The plan. `model`: the request's, where it was read from a folder. Raises PlanError, which says what to change
    in the request."""
    table = table or device_table()
    model = model or planned_model(request)
    _check_lengths(request, model)
    options: list[_Option] = []
    rejected: list[Rejection] = []
    prices = {table.find(name)[0]: price for name, price in request.money.prices.items()}
    names = list(dict.fromkeys(table.find(each)[0] for each in request.devices))
    for name in names:
        device = table.devices[name]
        price = _price(name, device, prices, request)
        found, refused = _on_device(request, model, name, device, price)
        options += found
        rejected += refused
    options.sort(key=lambda each: each.order)
    chosen = _varied(options)
    candidates = [candidate(each.groups, each.price) for each in chosen]
    return Plan(
        model=model.name,
        model_facts=_facts(model),
        request=request.model_dump(mode="json"),
        candidates=tuple(_compared(candidates)),
        rejected=tuple(_different(rejected)),
        curves=tuple(curves(each, found.name) for each, found in list(zip(chosen, candidates, strict=True))[:_CURVES]),
        training=tuple(training_jobs(request.training, model, {name: table.devices[name] for name in names})),
        notes=tuple(_notes(request, model, candidates)),
    )


def planned_model(request: PlanRequest) -> PlannedModel:
    if isinstance(request.model, str):
        return preset(request.model)
    return described(request.model, name=request.name)


def _longest_context(request: PlanRequest, model: PlannedModel) -> int:
    longest = model.spec.max_context_length
    return longest if request.max_context_length is None else min(request.max_context_length, longest)


def _check_lengths(request: PlanRequest, model: PlannedModel) -> None:
    """Raise PlanError where the mean request is longer than the longest context: most of the traffic is refused."""
    workload, longest = Workload.of(request.traffic, 0.0), _longest_context(request, model)
    mean = workload.prompt.mean + workload.output.mean
    if mean > longest:
        raise PlanError(
            f"{model.name}: the mean request has {mean:,.0f} tokens, more than the longest context of {longest:,}: "
            "take shorter lengths, a longer context, or another model"
        )


def _price(name: str, device: Device, prices: Mapping[str, float], request: PlanRequest) -> Quantity:
    price = device.dollars_per_hour(prices.get(name), owned=request.money.owned)
    if price is None:
        lacking = "list price and power" if request.money.owned else "rent"
        other = "" if request.money.owned or device.list_price is None else ", or count it as bought (--owned)"
        raise PlanError(
            f"the table has no {lacking} for {device.name}: give its price an hour (on the command line "
            f"--price {name}=2.50, on the console's page under Prices){other}"
        )
    return price


def _on_device(
    request: PlanRequest, model: PlannedModel, name: str, device: Device, price: Quantity
) -> tuple[list[_Option], list[Rejection]]:
    """Options on one device, in one stage; in several only where the model fits in no other way."""
    if device.operations_per_s == 0:
        raise PlanError(f"the table has no bfloat16 peak for {device.name}: give one in a file of devices (--devices)")
    stages = request.choices.pipeline_parallel
    options: list[_Option] = []
    rejected: list[Rejection] = []
    for count in stages or (1, *_STAGES):
        found, refused = _with_stages(request, model, name, device, price, count)
        options += found
        rejected += refused
        if options and stages is None:
            break
    return options, rejected


def _with_stages(
    request: PlanRequest, model: PlannedModel, name: str, device: Device, price: Quantity, stages: int
) -> tuple[list[_Option], list[Rejection]]:
    options: list[_Option] = []
    rejected: list[Rejection] = []
    rate, most = request.traffic.rate_rps / (1 - request.choices.headroom), request.choices.max_devices
    for layout in layouts(request.choices, model, name, device, stages, calibrated_replica(request)):
        try:
            replica = size(request, model, device, layout)
        except PlanError as error:
            reason = str(error).removeprefix(f"{model.name}: ")
            rejected.append(Rejection(name=layout_name(layout), layout=layout, reason=reason))
            continue
        groups = groups_for(replica, rate, most)
        if groups:
            options.append(_Option(groups, price))
        else:
            reason = why_not(replica, most)
            rejected.append(Rejection(name=layout_name(layout), layout=layout, reason=reason))
        if request.choices.disaggregation and (split := split_groups(replica, rate, most)):
            options.append(_Option(split, price))
    return options, rejected


def _varied(options: list[_Option]) -> list[_Option]:
    """The best option of each kind, and on each device the one with the shortest steps, in order."""
    kinds: dict[tuple[object, ...], _Option] = {}
    fastest: dict[str, _Option] = {}
    for each in options:
        kinds.setdefault(each.kind, each)
        name = each.layout.device
        if name not in fastest or each.tpot_s < 0.9 * fastest[name].tpot_s:
            fastest[name] = each
    chosen = [*kinds.values(), *(each for each in fastest.values() if each not in kinds.values())]
    costs = [each.hourly for each in chosen if each.is_served] or [each.hourly for each in chosen]
    most = _MOST_TIMES * min(costs, default=0.0)
    affordable = [each for each in chosen if each.hourly <= most]
    return sorted(affordable, key=lambda each: each.order)[:MAX_CANDIDATES]


def _different(rejected: list[Rejection]) -> Iterator[Rejection]:
    """The first rejection for each reason: of all devices in turn, those before others that are nearest to a fit."""
    of_devices: dict[str, dict[str, Rejection]] = {}
    for each in reversed(rejected):  # layouts grow
        of_devices.setdefault(each.layout.device, {})[each.reason] = each
    rounds = zip_longest(*(reasons.values() for reasons in reversed(of_devices.values())))
    yield from islice((each for row in rounds for each in row if each is not None), _MAX_REJECTIONS)


def _compared(candidates: list[Candidate]) -> Iterator[Candidate]:
    """Candidates with a sentence that says how they compare with the first."""
    for index, each in enumerate(candidates):
        cost, first = each.money.total.value, candidates[0].money.total.value
        if index == 0:
            others = (
                f"the cheapest of {len(candidates)} that meet" if len(candidates) > 1 else "the only one that meets"
            )
            sentence = f"It is {others} the targets."
        elif not each.is_served and cost <= first:
            sentence = f"It would cost {cost / first:.0%} of the first, but Kvarn does not run it."
        else:
            sentence = "It costs as much as the first." if cost == first else f"It costs {cost / first:.2f}x the first."
        yield msgspec.structs.replace(each, reasons=(sentence, *each.reasons))


def curves(option: _Option, name: str) -> Curves:
    """Cost by rate, with as many replicas as it needs; latency by rate, with those that the plan has."""
    request, groups = option.groups[0].replica.request, option.groups
    rate, most = request.traffic.rate_rps, request.choices.max_devices
    tokens = groups[0].replica.capacity(1).workload
    a_request = tokens.prompt.mean + tokens.output.mean
    dear = 1 + request.money.services_share
    cost, latency = [], []
    for factor in _RATES:
        counts = [each.replica.needed(factor * each.planned_rps, most, each.role) for each in groups]
        if None in counts:
            continue
        devices = sum(count * each.replica.layout.devices for count, each in zip(counts, groups, strict=True) if count)
        hourly = devices * option.price.value * dear
        cost.append(
            CostPoint(
                rate_rps=factor * rate,
                devices=devices,
                dollars_per_hour=hourly,
                dollars_per_million_tokens=per_million(hourly, factor * rate * a_request),
            )
        )
    full = min(group.full_rps() for group in groups)
    for load in _LOADS:
        points = [group.at(load * full) for group in groups]
        latency.append(
            LatencyPoint(rate_rps=load * full, ttft_s=sum_ttft(groups, load * full), tpot_s=points[-1].tpot_s)
        )
    return Curves(candidate=name, cost=tuple(cost), latency=tuple(latency))


def _facts(model: PlannedModel) -> tuple[Part, ...]:
    spec = model.spec
    return (
        Part("parameters", Quantity(value=model.num_parameters, unit="", source=model.source, error=0.0)),
        Part("layers", Quantity(value=spec.num_layers, unit="", source=model.source, error=0.0)),
        Part("longest context", Quantity(value=spec.max_context_length, unit="tokens", source=model.source, error=0.0)),
        Part("KV cache of a token", kv_bytes_per_token(model)),
    )


def _notes(request: PlanRequest, model: PlannedModel, candidates: list[Candidate]) -> Iterator[str]:
    traffic = request.traffic
    if not isinstance(traffic.input_tokens, tuple) and traffic.length_variation:
        yield (
            f"Lengths are assumed: log-normal, a standard deviation of {traffic.length_variation:g} times the mean. "
            "A trace of your own traffic, or a preset, is surer."
        )
    yield (
        f"Targets hold for {request.slo.percentile:.0%} of the requests in the busiest period: "
        f"{rate_text(traffic.rate_rps)}. Plan for your peak, not for the mean of a day."
    )
    longest = Workload.of(traffic, 0.0).longest
    context = _longest_context(request, model)
    if longest > context:
        yield (
            f"Some requests have {longest:,.0f} tokens, more than the longest context of {context:,}: they are "
            "refused, and counted here all the same."
        )
    if model.stored is not None and model.stored.packed_method is None:
        yield (
            f"The checkpoint's {model.stored.quant_method} weights are widened to bfloat16, or quantised anew at load "
            "(fp8; with --weights int4 to 4 bits): they take more memory than the checkpoint's files."
        )
    if candidates and any(each.money.device_hour.source != "given" for each in candidates):
        yield "Prices are offers seen on the dates in the table of devices: take your own."
