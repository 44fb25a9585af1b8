"""Search of deployments and settings: the planner's candidates and what is near them, judged by the simulator.

plan -> variants (layout, replicas, token budget, sequences at once) -> those that cost less, where the plan's own meets
the targets -> successive halving -> the cheapest that meets the targets -> settings that make no difference go back to
the plan's -> changes, each with what happens without it
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from multiprocessing import get_context

import msgspec
import numpy as np
from msgspec.structs import replace

from kvarn.config.schema import KvarnConfig
from kvarn.planner.answer import Candidate, Plan
from kvarn.planner.request import PlanRequest, TrafficRequest
from kvarn.simulator.halving import Judgement, Search, halve
from kvarn.simulator.optimised import Change, Figures, Optimised, Tried, missed, saved
from kvarn.simulator.outcome import Outcome
from kvarn.simulator.planned_traffic import peak_traffic, planned_traffic
from kvarn.simulator.request import End
from kvarn.simulator.run import simulate
from kvarn.simulator.scenario import Scenario
from kvarn.simulator.variants import Variant, planned_variant, variants_of

_log = logging.getLogger(__name__)

_REQUESTS = 800
"""Requests of a full run, within its bounds of time."""
_LEAST_S, _MOST_S = 20.0, 3600.0
_SHORTER = 4
"""Short runs have this part of a full one: a quarter of 20 s is as long as an answer."""
_TOLERANCE = 0.01
"""Part of the cost that is not worth another full run."""
_UNANSWERED = 10.0
"""Excess of a variant that does not answer as many requests as must meet the targets."""


class _Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run, as a process gets it."""

    settings: dict[str, object]
    candidate: Candidate
    traffic: TrafficRequest
    duration_s: float
    seed: int


def optimise(
    plan: Plan,
    *,
    seed: int = 0,
    jobs: int = 1,
    duration_s: float | None = None,
    progress: Callable[[int], None] = lambda runs: None,
) -> Optimised:
    """Search what is near the plan's candidates for the cheapest deployment that meets its targets in the simulator.
    `progress` is told the number of runs so far. Raises PlanError: the plan has nothing to vary."""
    with ExitStack() as stack:
        pool = None
        if jobs > 1:
            pool = stack.enter_context(ProcessPoolExecutor(jobs, mp_context=get_context("spawn")))
        return _Optimiser(plan, seed, duration_s, pool, progress).optimise()


class _Optimiser:
    def __init__(
        self,
        plan: Plan,
        seed: int,
        duration_s: float | None,
        pool: ProcessPoolExecutor | None,
        progress: Callable[[int], None],
    ) -> None:
        self._plan = plan
        self._request = PlanRequest.model_validate(plan.request)
        self._seed = seed
        self._pool = pool
        self._progress = progress
        self._traffic = peak_traffic(self._request)
        self._full_s = duration_s or min(_MOST_S, max(_LEAST_S, _REQUESTS / self._traffic.rate_rps))
        self._tried: dict[tuple[Variant, float], Tried] = {}
        self._runs: list[float] = []

    def optimise(self) -> Optimised:
        considered = variants_of(self._plan)
        planned = self._try(considered[:1], 1.0)[0]
        worth = [each for each in considered[1:] if self._is_worth_a_run(each, planned)]
        variants = [considered[0], *worth]

        def judge(which: Sequence[int], share: float) -> list[Judgement]:
            found = self._try([variants[each] for each in which], share)
            return [Judgement(cost=each.figures.dollars_per_hour, excess=each.figures.excess) for each in found]

        search = halve(len(variants), judge, factor=_SHORTER, rounds=2, tolerance=_TOLERANCE)
        chosen = self._tried[variants[_chosen(search)], 1.0]
        if search.best is not None:
            chosen = self._without_idle_changes(chosen)
        changes = tuple(self._changes(planned, chosen)) if search.best is not None else ()
        return Optimised(
            planned=planned,
            best=chosen if search.best is not None else None,
            closest=None if search.best is not None else chosen,
            best_name=self._plan.candidates[chosen.variant.candidate].name,
            settings=self._settings(chosen.variant),
            changes=changes,
            variants=len(considered),
            candidates=len(worth),
            runs=len(self._runs),
            length=sum(self._runs),
            duration_s=self._full_s,
            notes=self._notes(),
        )

    def _is_worth_a_run(self, variant: Variant, planned: Tried) -> bool:
        """Whether it could be chosen: where the plan holds, only what costs less could."""
        least = planned.figures.dollars_per_hour * (1 - _TOLERANCE)
        return planned.figures.excess > 0 or self._dollars(variant)[1] < least

    def _try(self, variants: Sequence[Variant], share: float) -> list[Tried]:
        """Run variants for a share of the full length, or longer where that is known."""
        for each in variants:
            if (each, 1.0) in self._tried:
                self._tried.setdefault((each, share), self._tried[each, 1.0])
        missing = [each for each in variants if (each, share) not in self._tried]
        runs = [
            _Run(
                settings=self._settings(each),
                candidate=self._plan.candidates[each.candidate],
                traffic=self._traffic,
                duration_s=self._full_s * share,
                seed=self._seed,
            )
            for each in missing
        ]
        for variant, outcome in zip(missing, self._outcomes(runs), strict=True):
            figures = self._figures(variant, outcome)
            self._tried[variant, share] = Tried(variant=variant, figures=figures, share=share)
            self._runs.append(share)
            self._progress(len(self._runs))
        return [self._tried[each, share] for each in variants]

    def _outcomes(self, runs: Sequence[_Run]) -> Iterator[Outcome]:
        """Outcomes in the order of the runs."""
        finished = 0
        if self._pool is not None and len(runs) > 1:
            try:
                for outcome in self._pool.map(_run, runs):
                    finished += 1
                    yield outcome
            except BrokenProcessPool:  # processes cannot be started, or were killed for their memory
                self._pool = None
                _log.warning("simulations go on in one process: their own processes died")
        yield from map(_run, runs[finished:])

    def _settings(self, variant: Variant) -> dict[str, object]:
        """The entry of `models` of a variant."""
        settings = self._plan.candidates[variant.candidate].settings
        engine = settings["engine"]
        assert isinstance(engine, dict)
        changed = {"token_budget": variant.token_budget, "max_num_seqs": variant.max_num_seqs}
        return {**settings, "replicas": variant.replicas, "engine": {**engine, **changed}}

    def _dollars(self, variant: Variant) -> tuple[int, float]:
        """Devices, and their cost for an hour, services included."""
        candidate = self._plan.candidates[variant.candidate]
        devices = variant.replicas * candidate.layout.devices
        return devices, candidate.money.total.value / candidate.devices * devices

    def _figures(self, variant: Variant, outcome: Outcome) -> Figures:
        slo, table = self._request.slo, outcome.requests
        count, answered = len(table), table.column("end") == list(End).index(End.ANSWERED)
        place = max(0, math.ceil(slo.percentile * count) - 1)

        def at_percentile(name: str) -> float:
            values = np.where(answered, np.nan_to_num(table.column(name), nan=0.0), math.inf)
            return float(np.sort(values)[place]) if count else 0.0

        ttft, tpot = at_percentile("ttft_s"), at_percentile("tpot_s")
        share = float(answered.mean()) if count else 1.0
        met = max(ttft / slo.ttft_s, tpot / slo.tpot_s) - 1
        devices, dollars = self._dollars(variant)
        taken = sum(each.device_s for each in outcome.deployments)
        return Figures(
            ttft_s=ttft if math.isfinite(ttft) else None,
            tpot_s=tpot if math.isfinite(tpot) else None,
            answered=share,
            utilisation=sum(each.busy_s for each in outcome.deployments) / taken if taken else 0.0,
            dollars_per_hour=dollars,
            devices=devices,
            excess=met if math.isfinite(met) else _UNANSWERED + 1 - share,
        )

    def _without_idle_changes(self, chosen: Tried) -> Tried:
        """The same, with each setting as planned that makes no difference to cost and targets."""
        planned = planned_variant(self._plan, chosen.variant.candidate)
        for name in ("max_num_seqs", "token_budget"):
            reverted = replace(chosen.variant, **{name: getattr(planned, name)})
            if reverted != chosen.variant:
                (tried,) = self._try([reverted], 1.0)
                if tried.figures.excess <= 0:
                    chosen = tried
        return chosen

    def _changes(self, planned: Tried, chosen: Tried) -> list[Change]:
        """Each difference, with what happens without it."""
        before, after = planned.variant, chosen.variant
        as_planned = planned_variant(self._plan, after.candidate)
        found = []
        if after.candidate != before.candidate:
            names = [self._plan.candidates[each.candidate].name for each in (before, after)]
            reason = saved(planned.figures, chosen.figures)
            found.append(Change(setting="deployment", before=names[0], after=names[1], reason=reason))
        for name, setting in (
            ("replicas", "replicas"),
            ("token_budget", "engine.token_budget"),
            ("max_num_seqs", "engine.max_num_seqs"),
        ):
            was, now = getattr(as_planned, name), getattr(after, name)
            if was != now:
                (without,) = self._try([replace(after, **{name: was})], 1.0)
                reason = self._reason(without, chosen)
                found.append(Change(setting=setting, before=str(was), after=str(now), reason=reason))
        return found

    def _reason(self, without: Tried, chosen: Tried) -> str:
        if without.figures.excess > 0:
            return f"without it {missed(without.figures, self._request.slo)}"
        return saved(without.figures, chosen.figures)

    def _notes(self) -> tuple[str, ...]:
        errors = [each.replica.error for each in self._plan.candidates if each.replica.error is not None]
        error = f", each within {max(errors):.0%} of the truth" if errors else ""
        return (
            f"A full run has {self._full_s:.0f} s of traffic at {self._traffic.rate_rps:.3g} requests/s, with the "
            "plan's headroom; it begins with empty caches.",
            f"Steps take what the planner predicts for the device{error}: the choice is as good as that.",
            "Nothing fails in these runs: keep what you need for a lost replica, or simulate it (kvarn simulate).",
        )


def _run(run: _Run) -> Outcome:
    config = KvarnConfig.model_validate({"models": [run.settings]})
    name = config.models[0].name
    scenario = Scenario(config=config, replicas={name: run.candidate.replica}, duration_s=run.duration_s, seed=run.seed)
    return simulate(scenario, planned_traffic(run.traffic, run.duration_s, run.seed))


def _chosen(search: Search) -> int:
    found = search.best if search.best is not None else search.closest
    assert found is not None
    return found
