"""Simulations of a model's recent requests, as they came and with other settings.

A module of `kvarn.sandbox.worker`: a gateway asks it, and its time and memory are bounded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count

import msgspec
import numpy as np
from msgspec.structs import replace

from kvarn.config.schema import KvarnConfig
from kvarn.costs.replica_model import Distribution, ReplicaModel
from kvarn.planner.errors import PlanError
from kvarn.sandbox.worker import tell
from kvarn.simulator.other_replica import OtherReplica, other_replica
from kvarn.simulator.outcome import Outcome
from kvarn.simulator.request import End
from kvarn.simulator.run import simulate
from kvarn.simulator.scenario import Scenario, ScenarioError
from kvarn.traffic.conversation import Conversation, ConversationTurn
from kvarn.traffic.workload import Segment
from kvarn.wire.what_if import (
    Changes,
    NotSimulated,
    Progress,
    RecordedRequest,
    Side,
    Simulated,
    WhatIf,
)

_PERCENT = np.arange(101) / 100.0
_RUNS = 3
"""Runs of an answer: as it was, to learn the time outside the engine; as it was, with it; with the changes."""
_OUTSIDE = (
    "{:.3g} ms of each request pass outside the engine, in gateway, tokenizer and network: chosen so that the medians "
    "of TTFT agree."
)
_NOTES = (
    "Prompts of a project begin alike for as many tokens as were found in the cache; other hits are not known.",
    "Answers have the lengths they had; requests arrive when they did, however fast the answers come.",
    "Requests that were refused are in no ledger, so they are not simulated.",
)


def answer(payload: bytes) -> bytes:
    """Make of a `WhatIf` a `Simulated` or a `NotSimulated`; tells `Progress`."""
    os.nice(19)  # whoever serves comes first
    asked = msgspec.json.decode(payload, type=WhatIf)
    try:
        return msgspec.json.encode(simulate_both(asked, lambda share: tell(msgspec.json.encode(Progress(share)))))
    except (ScenarioError, PlanError) as error:
        return msgspec.json.encode(NotSimulated(str(error)))


def simulate_both(asked: WhatIf, progress: Callable[[float], None] = lambda share: None) -> Simulated:
    """Simulate the requests as they came, without the changes and with them. Raises ScenarioError, PlanError."""
    config = KvarnConfig.model_validate(asked.config)
    model = config.models[0]
    slo = config.slo_of(model)
    measured = measured_side(asked.requests, slo.ttft_target_s, slo.tpot_target_s)
    plain = Scenario(config=config, replicas={model.name: asked.replica}, duration_s=asked.duration_s)
    outside_s = _outside_s(measured, side_of(_run(plain, asked, progress, 0)))
    before = _with_replica(plain, asked.replica, outside_s)
    other = other_replica(asked)
    settings = settings_of(asked.changes, other)
    after = _with_replica(before.changed(settings), other.replica, outside_s)
    outcomes = [_run(scenario, asked, progress, number) for number, scenario in enumerate((before, after), start=1)]
    return Simulated(
        measured=measured,
        before=side_of(outcomes[0]),
        after=side_of(outcomes[1]),
        ttft_target_s=slo.ttft_target_s,
        tpot_target_s=slo.tpot_target_s,
        settings=settings,
        notes=[*other.notes, _OUTSIDE.format(1000 * outside_s), *_NOTES],
        logs=(outcomes[0].log_sha256, outcomes[1].log_sha256),
    )


def _outside_s(measured: Side, simulated: Side) -> float:
    """Seconds that requests spend outside the engine: the time by which the measured median exceeds the simulated."""
    if measured.ttft_s is None or simulated.ttft_s is None:
        return 0.0
    return max(0.0, measured.ttft_s.at(0.5) - simulated.ttft_s.at(0.5))


def _with_replica(scenario: Scenario, replica: ReplicaModel, outside_s: float) -> Scenario:
    answering = replace(replica, answer_s=Distribution((outside_s,)))
    return scenario.model_copy(update={"replicas": {scenario.config.models[0].name: answering}})


def settings_of(changes: Changes, other: OtherReplica) -> list[str]:
    """The configuration's settings that the changes stand for, as `path=value`."""
    place, found = "models.0", []
    if changes.replicas is not None:
        found.append(f"{place}.replicas={changes.replicas}")
    if changes.whole_prompts:
        # A budget that every prompt fits in, and no target for which a prompt's share of a step would be cut.
        found += [
            f"{place}.engine.token_budget={other.replica.max_context_length}",
            f"{place}.engine.tpot_target_ms=1e9",
        ]
    elif changes.token_budget is not None:
        found.append(f"{place}.engine.token_budget={changes.token_budget}")
    if changes.max_num_seqs is not None:
        found.append(f"{place}.engine.max_num_seqs={changes.max_num_seqs}")
    if changes.kv_cache_dtype is not None:
        found.append(f"{place}.kv_cache_dtype={changes.kv_cache_dtype}")
    if changes.quantization is not None:
        found.append(f"{place}.quantization={changes.quantization}")
    return found


def recorded_traffic(requests: list[RecordedRequest]) -> Iterator[Conversation]:
    """A conversation of one turn for each request, in the order of their arrivals."""
    keys = count(1 << 40)
    for each in sorted(requests, key=lambda request: request.at_s):
        known = min(each.cached_tokens, each.input_tokens - 1)
        shared = (Segment(each.project, known),) if known > 0 else ()
        own = Segment(next(keys), each.input_tokens - max(0, known))
        turn = ConversationTurn(segments=(*shared, own), output_tokens=max(1, each.output_tokens))
        yield Conversation(begins_s=each.at_s, turns=(turn,), tenant=f"project-{each.project}")


def _run(scenario: Scenario, asked: WhatIf, progress: Callable[[float], None], number: int) -> Outcome:
    def tell_share(done: float) -> None:
        progress((number + done) / _RUNS)

    outcome = simulate(scenario, recorded_traffic(asked.requests), progress=tell_share)
    tell_share(1.0)
    return outcome


def side_of(outcome: Outcome) -> Side:
    table = outcome.requests
    ends = table.column("end")
    counts = {end: int((ends == number).sum()) for number, end in enumerate(End)}
    prompts, cached = int(table.column("prompt_tokens").sum()), int(table.column("cached_tokens").sum())
    taken = sum(each.device_s for each in outcome.deployments)
    return Side(
        requests=len(table),
        answered=counts[End.ANSWERED],
        refused=counts[End.REFUSED],
        failed=counts[End.FAILED] + counts[End.LEFT],
        ttft_s=quantiles(table.column("ttft_s")),
        tpot_s=quantiles(table.column("tpot_s")),
        total_s=quantiles(table.column("e2e_s")),
        within_targets=float(table.column("met_slo").sum()) / len(table) if len(table) else None,
        utilisation=sum(each.busy_s for each in outcome.deployments) / taken if taken else None,
        preemptions=sum(each.engines.preemptions for each in outcome.deployments),
        cached_share=cached / prompts if prompts else None,
        device_hours=outcome.device_hours,
    )


def measured_side(requests: list[RecordedRequest], ttft_target_s: float, tpot_target_s: float) -> Side:
    """Times as the gateway measured them."""
    times = [each for each in requests if each.ttft_s is not None and each.total_s is not None]
    ttft = np.array([each.ttft_s for each in times], dtype=float)
    total = np.array([each.total_s for each in times], dtype=float)
    rest = np.array([each.output_tokens - 1 for each in times], dtype=float)
    tpot = np.divide(total - ttft, rest, out=np.full(len(times), np.nan), where=rest > 0)
    met = (ttft <= ttft_target_s) & ~(tpot > tpot_target_s)
    prompts = sum(each.input_tokens for each in requests)
    return Side(
        requests=len(requests),
        answered=len(times),
        refused=0,
        failed=len(requests) - len(times),
        ttft_s=quantiles(ttft),
        tpot_s=quantiles(tpot),
        total_s=quantiles(total),
        within_targets=float(met.mean()) if len(times) else None,
        cached_share=sum(each.cached_tokens for each in requests) / prompts if prompts else None,
    )


def quantiles(values: np.ndarray) -> Distribution | None:
    """Values at each percent; None: there are none."""
    known = values[~np.isnan(values)]
    return Distribution(tuple(np.quantile(known, _PERCENT).tolist())) if len(known) else None
