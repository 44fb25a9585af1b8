"""The benchmark past capacity: its load, its figures, and one moment of it against a real server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from benchmarks.overload.__main__ import cell, table, verdicts
from benchmarks.overload.load import Answer, play
from benchmarks.overload.server import MODES, SHEDDING, command
from benchmarks.overload.traffic import TENANTS, timetable, weight_share
from benchmarks.server import free_port, running

from kvarn.bench.summary import Slo


def test_the_load_is_split_between_the_tenants_by_their_shares() -> None:
    sendings = timetable(TENANTS, 8000, 200, seed=1)
    times = [each.request.arrival_s or 0.0 for each in sendings]
    assert times == sorted(times) and 190 < times[-1] <= 200
    costs = dict.fromkeys((tenant.name for tenant in TENANTS), 0.0)
    for each in sendings:
        costs[each.tenant.name] += each.request.prompt_tokens + 2 * each.request.output_tokens
    assert sum(costs.values()) / 200 == pytest.approx(8000, rel=0.1)
    for tenant in TENANTS:
        assert costs[tenant.name] / sum(costs.values()) == pytest.approx(tenant.load, rel=0.15)
    assert len({each.request.segments for each in sendings}) == len(sendings), "no prompt comes twice"


def answer(tenant: str, due: float, *, good: bool = True, error: str | None = None, cost: float = 100.0) -> Answer:
    end = None if error == "given_up" else due + 1
    return Answer(tenant, due, due + 0.5, end, 0.0 if error else cost, good and not error, error, 0.2, 0.02)


def test_only_requests_due_in_the_window_count_and_only_good_ones_are_goodput() -> None:
    answers = [
        answer("gold", 1.5),
        answer("gold", 3, cost=300),
        answer("silver", 4, good=False),
        answer("gold", 5, error="http_429"),
        answer("silver", 6, error="given_up"),
    ]
    found = cell(answers, 1.0, SHEDDING, warm_up_s=2, seconds=10)
    assert found.offered_per_s == pytest.approx(0.4)
    assert found.good_per_s == pytest.approx(0.1) and found.good_cost_per_s == pytest.approx(30)
    assert found.refused == 0.25 and found.refused_p95 == pytest.approx(500), "from when it was sent"
    assert found.shares["gold"] == pytest.approx(0.8), "what was begun before the window and ended in it counts as work"


def test_the_table_and_the_verdicts_compare_with_the_goodput_at_capacity() -> None:
    cells = []
    for level in (1.0, 2.0):
        for mode in MODES:
            served = [answer(tenant.name, 3, cost=1000 * weight_share(tenant, TENANTS)) for tenant in TENANTS]
            some = served if mode == SHEDDING or level <= 1 else [answer("gold", 3, good=False), *served[1:]]
            cells.append(cell(some, level, mode, warm_up_s=2, seconds=10))
    assert len(table(cells, TENANTS)) == 2 + 6
    assert [line[:35] for line in verdicts(cells, TENANTS)] == [
        "* 2x, shedding: goodput 100% of tha",
        "* 2x, default: goodput 67% of that ",
    ]


@pytest.mark.thorough
def test_a_server_with_a_modelled_engine_answers_all_tenants(tmp_path: Path) -> None:
    slo, port = Slo(ttft_ms=60_000, tpot_ms=60_000), free_port()
    options = ("--ttft-ms", "60000", "--tpot-ms", "60000")
    with running(command(SHEDDING, port, *options), port, tmp_path / "log") as server:
        answers = asyncio.run(play(server.url, timetable(TENANTS, 6000, 2.0, seed=3), 30.0, slo, 3))
    assert {each.tenant for each in answers if each.good} == {tenant.name for tenant in TENANTS}, answers
    assert not [each for each in answers if each.error]
