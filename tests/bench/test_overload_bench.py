"""The benchmark past capacity: its load, its figures, its page, and one moment of it against a real server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from benchmarks.overload import report
from benchmarks.overload.figures import LEVELS, Cell, ResultsError, Setting, append, cell, read
from benchmarks.overload.load import Answer, play
from benchmarks.overload.server import MODELLED, MODES, SHEDDING, Target, running
from benchmarks.overload.traffic import TENANTS, timetable, weight_share

from kvarn.bench.summary import Slo

SETTING = Setting(
    started_at="2026-01-01T00:00:00+00:00",
    environment={"processor": "a processor", "cores": 2},
    engine=MODELLED,
    path="kvarn-demo",
    traffic="mixed",
    levels=list(LEVELS),
    ttft_ms=500,
    tpot_ms=50,
    seconds=10,
    warm_up_s=2,
    capacity=8000,
    probes={"32": 8000.0},
)


def test_the_load_is_split_between_the_tenants_as_it_says() -> None:
    sendings = timetable(TENANTS, 8000, 200, seed=1)
    times = [each.request.arrival_s or 0.0 for each in sendings]
    assert times == sorted(times) and 190 < times[-1] <= 200
    costs = {tenant.name: 0.0 for tenant in TENANTS}
    for each in sendings:
        costs[each.tenant.name] += each.request.prompt_tokens + 2 * each.request.output_tokens
    assert sum(costs.values()) / 200 == pytest.approx(8000, rel=0.1)
    for tenant in TENANTS:
        assert costs[tenant.name] / sum(costs.values()) == pytest.approx(tenant.load, rel=0.15)
    assert len({each.request.segments for each in sendings}) == len(sendings), "no prompt comes twice"


def answer(tenant: str, due: float, *, good: bool = True, error: str | None = None, cost: float = 100.0) -> Answer:
    end = None if error == "given_up" else due + 1
    return Answer(tenant, due, due + 0.5, end, 0.0 if error else cost, good and not error, error, 0.2, 0.02)


def figures(answers: list[Answer], level: float = 1.0, *, mode: str = SHEDDING, turn: int = 0) -> Cell:
    return cell(answers, level=level, mode=mode, turn=turn, warm_up_s=2, seconds=10, load_before=0.1)


def test_only_requests_due_in_the_window_count_and_only_good_ones_are_goodput() -> None:
    found = figures(
        [
            answer("gold", 1.5),
            answer("gold", 3, cost=300),
            answer("silver", 4, good=False),
            answer("gold", 5, error="http_429"),
            answer("silver", 6, error="given_up"),
        ]
    )
    assert found.offered_per_s == pytest.approx(0.4)
    assert found.good_per_s == pytest.approx(0.1) and found.good_cost_per_s == pytest.approx(30)
    assert found.errors == {"http_429": 1, "given_up": 1}
    assert found.refused_p95_ms == pytest.approx(500), "from when it was sent"
    assert found.shares["gold"] == pytest.approx(0.8), "what was begun before the window and ended in it counts as work"


def test_the_page_says_what_was_kept_past_capacity(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    append(path, SETTING)
    for level in LEVELS:
        for mode in MODES:
            served = [answer(tenant.name, 3, cost=1000 * weight_share(tenant, TENANTS)) for tenant in TENANTS]
            some = served if mode == SHEDDING or level <= 1 else [answer("gold", 3, good=False), *served[1:]]
            append(path, figures(some, level, mode=mode))
    found = read(path)
    assert found.setting == SETTING and len(report.rows(found)) == len(LEVELS) * len(MODES)
    report.write([found], tmp_path)
    page = (tmp_path / "overload.md").read_text()
    assert "2x, shedding: goodput 100%" in page and "2x, default: goodput 67%" in page
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ResultsError, match="name another file"):
        read(tmp_path / "empty.jsonl")


@pytest.mark.thorough
def test_a_server_with_a_modelled_engine_answers_all_tenants(tmp_path: Path) -> None:
    slo = Slo(ttft_ms=60_000, tpot_ms=60_000)
    with running(MODELLED, "kvarn-demo", Target(60_000, 60_000), tmp_path, SHEDDING) as url:
        answers = asyncio.run(play(url, timetable(TENANTS, 6000, 2.0, seed=3), 30.0, slo, 3))
    assert {each.tenant for each in answers if each.good} == {tenant.name for tenant in TENANTS}, answers
    assert not [each for each in answers if each.error]
