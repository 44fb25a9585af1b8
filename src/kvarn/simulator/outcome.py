"""Outcome of a simulation: each request's times, the use of devices, replicas over time; sums and percentiles."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvarn.rollouts.rollout import Rollout
from kvarn.simulator.engine_totals import EngineTotals
from kvarn.simulator.request import End, SimulatedRequest

Mask: TypeAlias = NDArray[np.bool_]
"""Some of the requests: whether each is meant."""
_NONE = float("nan")
ENDS = tuple(End)


class RequestTable:
    """Requests that are over, a column each quantity; seconds are NaN where there is none."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """Names of models, tenants and reasons, to which the columns refer by their numbers."""
        self._numbers: dict[str, int] = {}
        self.model = array("I")
        self.tenant = array("I")
        self.reason = array("I")
        self.end = array("B")
        self.met_slo = array("B")
        self.prompt_tokens = array("I")
        self.cached_tokens = array("I")
        self.output_tokens = array("I")
        self.engines = array("H")
        """Engines that each was sent to, one after the other."""
        self.arrival_s = array("d")
        self.ttft_s = array("d")
        self.tpot_s = array("d")
        self.e2e_s = array("d")
        self.queue_s = array("d")

    def __len__(self) -> int:
        return len(self.end)

    def add(self, request: SimulatedRequest, *, met_slo: bool) -> None:
        answered = request.end is End.ANSWERED
        self.model.append(self._number(request.model))
        self.tenant.append(self._number(request.tenant))
        self.reason.append(self._number(request.reason))
        assert request.end is not None, "it is over"
        self.end.append(ENDS.index(request.end))
        self.met_slo.append(met_slo)
        self.prompt_tokens.append(len(request.prompt))
        self.cached_tokens.append(request.cached_tokens)
        self.output_tokens.append(len(request.tokens))
        self.engines.append(min(request.attempts, 65535))
        self.arrival_s.append(request.arrival_s)
        self.ttft_s.append(_NONE if request.ttft_s is None else request.ttft_s)
        self.tpot_s.append(_NONE if request.tpot_s is None or not answered else request.tpot_s)
        self.e2e_s.append(_NONE if request.e2e_s is None or not answered else request.e2e_s)
        self.queue_s.append(_NONE if request.queue_s is None else request.queue_s)

    def extend(self, other: RequestTable) -> None:
        """Add another table's requests."""
        numbers = [self._number(name) for name in other.names]
        for column in ("model", "tenant", "reason"):
            getattr(self, column).extend(numbers[each] for each in getattr(other, column))
        for column in (*_COUNTS, *_SECONDS):
            getattr(self, column).extend(getattr(other, column))

    def column(self, name: str) -> NDArray[Any]:
        """A column as an array."""
        return np.asarray(getattr(self, name))

    def named(self, column: str) -> dict[str, Mask]:
        """For each name in a column, in the order of the names, where it stands."""
        numbers = self.column(column)
        return {self.names[each]: numbers == each for each in sorted(set(numbers.tolist()), key=self.names.__getitem__)}

    def _number(self, name: str) -> int:
        found = self._numbers.get(name)
        if found is None:
            found = self._numbers[name] = len(self.names)
            self.names.append(name)
        return found


_COUNTS = ("end", "met_slo", "prompt_tokens", "cached_tokens", "output_tokens", "engines")
_SECONDS = ("arrival_s", "ttft_s", "tpot_s", "e2e_s", "queue_s")


@dataclass(frozen=True, slots=True)
class DeploymentUse:
    """Replicas of one deployment over the whole run."""

    model: str
    devices: int  # of a replica
    device_s: float  # seconds for which devices were taken, times their number
    busy_s: float  # seconds for which devices computed, times their number
    engines: EngineTotals
    replicas: tuple[tuple[float, int], ...]
    """Moments at which the number of ready replicas changed, and what it is from then on."""

    @property
    def utilisation(self) -> float:
        return self.busy_s / self.device_s if self.device_s else 0.0


@dataclass(slots=True)
class Outcome:
    name: str
    seed: int
    duration_s: float  # of the traffic
    log_sha256: str = ""
    ended_s: float = 0.0
    """Time at which the last request was over."""
    num_events: int = 0
    requests: RequestTable = field(default_factory=RequestTable)
    deployments: list[DeploymentUse] = field(default_factory=list)
    rollouts: list[Rollout] = field(default_factory=list)
    fallbacks: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Requests for which a model could not begin and another was asked, by both and the reason."""
    wall_s: float = 0.0
    """Seconds of this machine that it took; no part of what is compared."""

    @property
    def device_hours(self) -> float:
        return sum(each.device_s for each in self.deployments) / 3600


def percentiles(values: NDArray[np.float64], shares: Sequence[float] = (50, 90, 95, 99)) -> dict[str, float] | None:
    """Percentiles and the mean of what is not NaN; None where there is nothing."""
    values = values[~np.isnan(values)]
    if not len(values):
        return None
    found = {f"p{share:g}": float(each) for share, each in zip(shares, np.percentile(values, shares), strict=True)}
    return {"mean": float(values.mean()), **found, "max": float(values.max())}


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of requests. Latencies are in seconds; None where there is none."""

    arrived: int
    ends: dict[str, int]
    """Requests by how they ended."""
    reasons: dict[str, int]
    """Requests that were not answered, by why."""
    moved: int
    """Requests that went on with another engine, as theirs was lost or drained."""
    goodput: float | None
    """Part of all that arrived whose answer met the targets."""
    requests_per_s: float
    output_tokens_per_s: float
    prompt_tokens: int
    output_tokens: int
    cache_hit_rate: float
    """Part of the prompts' tokens that was cached."""
    ttft_s: dict[str, float] | None
    tpot_s: dict[str, float] | None
    e2e_s: dict[str, float] | None
    queue_s: dict[str, float] | None


def summary(outcome: Outcome, chosen: Mask | None = None) -> Summary:
    """Figures of all requests, or of some of them."""
    table = outcome.requests
    mask = np.ones(len(table), dtype=bool) if chosen is None else chosen
    ends = table.column("end")[mask]
    prompt, cached = table.column("prompt_tokens")[mask], table.column("cached_tokens")[mask]
    output_tokens = int(table.column("output_tokens")[mask].sum())
    began = ~np.isnan(table.column("ttft_s")[mask])
    seconds = max(outcome.duration_s, outcome.ended_s, 1e-9)
    reasons = Counter(table.names[each] for each in table.column("reason")[mask].tolist())
    arrived = len(ends)
    return Summary(
        arrived=arrived,
        ends={end.value: int((ends == number).sum()) for number, end in enumerate(ENDS)},
        reasons={name: count for name, count in sorted(reasons.items()) if name},
        moved=int((table.column("engines")[mask] > 1).sum()),
        goodput=float(table.column("met_slo")[mask].sum()) / arrived if arrived else None,
        requests_per_s=int((ends == 0).sum()) / seconds,
        output_tokens_per_s=output_tokens / seconds,
        prompt_tokens=int(prompt.sum()),
        output_tokens=output_tokens,
        cache_hit_rate=int(cached[began].sum()) / max(1, int(prompt[began].sum())),
        ttft_s=percentiles(table.column("ttft_s")[mask]),
        tpot_s=percentiles(table.column("tpot_s")[mask]),
        e2e_s=percentiles(table.column("e2e_s")[mask]),
        queue_s=percentiles(table.column("queue_s")[mask]),
    )


def report(outcome: Outcome) -> dict[str, Any]:
    """The whole report, for JSON: the same for the same inputs, but for `wall_s`."""
    table = outcome.requests
    tenants = {name: summary(outcome, mask) for name, mask in table.named("tenant").items() if name}
    found: dict[str, Any] = msgspec.to_builtins(
        {
            "name": outcome.name,
            "seed": outcome.seed,
            "duration_s": outcome.duration_s,
            "ended_s": outcome.ended_s,
            "log_sha256": outcome.log_sha256,
            "events": outcome.num_events,
            "wall_s": outcome.wall_s,
            "device_hours": outcome.device_hours,
            "all": summary(outcome),
            "models": {name: summary(outcome, mask) for name, mask in table.named("model").items()},
            "tenants": tenants,
            "fallbacks": [
                {"model": model, "to": other, "reason": reason, "requests": count}
                for (model, other, reason), count in sorted(outcome.fallbacks.items())
            ],
            "rollouts": [
                {
                    "model": each.model,
                    "candidate": each.candidate,
                    "phase": each.phase.value,
                    "failure": each.gates.failure,
                    "decisions": [
                        {
                            "t": decision.at,
                            "action": decision.action,
                            "share": decision.share,
                            "reason": decision.reason,
                        }
                        for decision in each.log
                    ],
                }
                for each in outcome.rollouts
            ],
            "deployments": [
                {
                    "model": each.model,
                    "devices_per_replica": each.devices,
                    "device_hours": each.device_s / 3600,
                    "utilisation": each.utilisation,
                    "preemptions": each.engines.preemptions,
                    "speculation": {
                        "rows": each.engines.verified,
                        "proposed": each.engines.proposed,
                        "accepted": each.engines.accepted,
                    },
                    "disk": {"written_bytes": each.engines.disk_written, "read_bytes": each.engines.disk_read},
                    "ready_replicas": [{"t": t, "replicas": count} for t, count in each.replicas],
                }
                for each in outcome.deployments
            ],
        }
    )
    return found
