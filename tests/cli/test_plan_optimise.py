"""`kvarn plan --optimise`: its answer is printed, and part of the JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvarn.cli.plan import app
from kvarn.planner.answer import Plan
from kvarn.simulator.optimised import Change, Figures, Optimised, Tried
from kvarn.simulator.variants import Variant


def tried(replicas: int, excess: float) -> Tried:
    figures = Figures(
        ttft_s=0.2,
        tpot_s=0.02,
        answered=1.0,
        utilisation=0.5,
        dollars_per_hour=2.0 * replicas,
        devices=replicas,
        excess=excess,
    )
    variant = Variant(candidate=0, replicas=replicas, token_budget=2048, max_num_seqs=256)
    return Tried(variant=variant, figures=figures, share=1.0)


def searched(best: Tried | None) -> Optimised:
    change = Change(setting="replicas", before="3", after="2", reason="it costs less")
    return Optimised(
        planned=tried(3, -0.2),
        best=best,
        closest=None if best is not None else tried(3, 0.4),
        best_name="2 replicas of H100",
        settings={"name": "m", "replicas": 2},
        changes=(change,) if best is not None else (),
        variants=12,
        candidates=6,
        runs=9,
        length=5.5,
        duration_s=60.0,
        notes=("A note.",),
    )


@pytest.mark.parametrize("best", [tried(2, -0.1), None])
def test_the_search_is_told_after_the_plan(best: Tried | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def search(plan: Plan, **_: Any) -> Optimised:
        assert plan.candidates
        return searched(best)

    monkeypatch.setattr("kvarn.simulator.optimise.optimise", search)
    path = tmp_path / "plan.json"
    arguments = ["Qwen/Qwen3-8B", "--gpu", "h100", "--rps", "5", "--optimise", "--json", str(path)]
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    told = json.loads(path.read_text())["searched"]
    if best is None:
        assert "None of them meets the targets" in ran.output and told["best"] is None
    else:
        assert "replicas: 3 -> 2" in ran.output and "replicas: 2" in ran.output
        assert told["changes"][0]["reason"] == "it costs less" and told["settings"] == {"name": "m", "replicas": 2}


def test_the_printed_command_searches(tmp_path: Path) -> None:
    """The command of docs/guides/plan.md with short requests."""
    path = tmp_path / "plan.json"
    command = "Qwen/Qwen3-8B --gpu h100 --rps 40 --ttft 0.5 --tpot 0.05 --optimise --input 64 --output 2 --json"
    ran = CliRunner().invoke(app, [*command.split(), str(path)])
    assert ran.exit_code == 0, ran.output
    assert "Searched with the simulator" in ran.output and "simulations: 1" in ran.output
    told = json.loads(path.read_text())["searched"]
    assert told["best"]["figures"]["excess"] <= 0 and told["runs"] >= 1
