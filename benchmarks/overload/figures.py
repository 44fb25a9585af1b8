"""From answers to figures, and the file in which they are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np

from benchmarks.overload.load import Answer
from benchmarks.overload.traffic import TRAFFIC, weight_share

FORMAT = "kvarn-overload/2"
LEVELS = (0.5, 1.0, 2.0, 3.0, 4.0)
"""Offered load over the capacity."""


class ResultsError(Exception):
    """The file of results cannot be used; the message says what to do."""


class Setting(msgspec.Struct, frozen=True, kw_only=True, tag="setting"):
    """What is measured on what; the first line of a file."""

    format: str = FORMAT
    started_at: str
    environment: dict[str, Any]
    engine: str
    path: str
    traffic: str
    levels: list[float]
    ttft_ms: float
    tpot_ms: float
    seconds: float
    """Of each measurement, its warm-up left out."""
    warm_up_s: float
    capacity: float
    """Weighted tokens a second."""
    probes: dict[str, float]
    """By users of a closed loop: the weighted tokens a second that were good."""


class Cell(msgspec.Struct, frozen=True, kw_only=True, tag="cell"):
    """One measurement: a level in a mode."""

    level: float
    mode: str
    round: int
    offered_per_s: float
    good_per_s: float
    """Requests a second that met both targets: the goodput."""
    good_cost_per_s: float
    """Their weighted tokens."""
    served_cost_per_s: float
    """Weighted tokens of all that was answered."""
    shares: dict[str, float]
    """Of what was served, by tenant."""
    good_ratio: dict[str, float]
    """Of each tenant's requests, those that met both targets."""
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    tpot_p95_ms: float | None
    refused_p95_ms: float | None
    """From sending a request to its refusal."""
    errors: dict[str, int]
    """Requests that were not answered, by status or reason."""
    load_before: float
    """Load average of the machine before."""

    @property
    def key(self) -> tuple[float, str, int]:
        """Which measurement it is."""
        return self.level, self.mode, self.round


def cell(
    answers: Sequence[Answer],
    *,
    level: float,
    mode: str,
    turn: int,
    warm_up_s: float,
    seconds: float,
    load_before: float,
) -> Cell:
    """The figures of one measurement: of requests due, and of work done, after the warm-up and before the end."""
    end = warm_up_s + seconds
    due = [each for each in answers if warm_up_s <= each.due_s < end]
    done = [each for each in answers if each.end_s is not None and warm_up_s <= each.end_s < end]
    served = {name: sum(each.cost for each in done if each.tenant == name) for name in {each.tenant for each in due}}
    whole = sum(served.values())
    good = [each for each in due if each.good]
    ttfts = [each.ttft_s for each in due if each.ttft_s is not None]
    refused = [each.end_s - each.sent_s for each in due if each.end_s is not None and is_refusal(each.error)]
    tpots = [each.tpot_s for each in due if each.tpot_s is not None]
    return Cell(
        level=level,
        mode=mode,
        round=turn,
        offered_per_s=len(due) / seconds,
        good_per_s=len(good) / seconds,
        good_cost_per_s=sum(each.cost for each in good) / seconds,
        served_cost_per_s=whole / seconds,
        shares={name: cost / whole if whole else 0.0 for name, cost in served.items()},
        good_ratio={name: _ratio([each.good for each in due if each.tenant == name]) for name in served},
        ttft_p50_ms=_percentile_ms(ttfts, 50),
        ttft_p95_ms=_percentile_ms(ttfts, 95),
        tpot_p95_ms=_percentile_ms(tpots, 95),
        refused_p95_ms=_percentile_ms(refused, 95),
        errors=dict(Counter(each.error for each in due if each.error is not None)),
        load_before=load_before,
    )


class Results(msgspec.Struct):
    """All that was measured in one run."""

    setting: Setting
    cells: list[Cell]

    def of(self, level: float, mode: str) -> list[Cell]:
        """The rounds of one measurement."""
        return [each for each in self.cells if each.level == level and each.mode == mode]

    def middle(self, level: float, read: Callable[[Cell], float | None], mode: str) -> float | None:
        """The median of a figure over the rounds."""
        values = [value for each in self.of(level, mode) if (value := read(each)) is not None]
        return median(values) if values else None

    def kept(self, level: float, mode: str) -> float | None:
        """Goodput at this level, over that at capacity."""
        there = self.middle(level, lambda each: each.good_per_s, mode)
        full = self.middle(1.0, lambda each: each.good_per_s, mode)
        return there / full if there is not None and full else None

    def unfairness(self, level: float, mode: str) -> float | None:
        """Largest deviation of a tenant's share from its weight's."""
        found = []
        tenants = TRAFFIC[self.setting.traffic]
        for tenant in tenants:
            share = self.middle(level, lambda each, name=tenant.name: each.shares[name], mode)  # type: ignore[misc]
            if share is None:
                return None
            found.append(abs(share / weight_share(tenant, tenants) - 1))
        return max(found)


def append(path: Path, line: Setting | Cell) -> None:
    """Keep a line the moment it is known."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")


def read(path: Path) -> Results:
    """What a file holds.

    Raises:
        ResultsError: It is not there, or not of this measurement.
    """
    try:
        lines = [line for line in path.read_bytes().splitlines() if line.strip()]
        decoded = [msgspec.json.decode(line, type=Setting | Cell) for line in lines]
    except (OSError, msgspec.DecodeError) as error:
        raise ResultsError(f"{path} cannot be read ({error}): measure first, or name another file") from None
    if not decoded or not isinstance(decoded[0], Setting) or decoded[0].format != FORMAT:
        raise ResultsError(f"{path} does not begin with a setting of {FORMAT}: name another file")
    return Results(decoded[0], [each for each in decoded[1:] if isinstance(each, Cell)])


def is_refusal(error: str | None) -> bool:
    """Whether a request was answered with an HTTP error."""
    return error is not None and error.startswith("http_")


def _ratio(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0


def _percentile_ms(seconds: Sequence[float], rank: float) -> float | None:
    return float(np.percentile(np.asarray(seconds), rank)) * 1000 if seconds else None
