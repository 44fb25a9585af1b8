"""Grafana's boards and the examples of Prometheus and Alertmanager: files that are current, and that these read."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import pytest

from boards import BOARDS, board_files
from kvarn.observe.alerts.rules import RULES
from panels import COLUMNS, DATASOURCE, Unit

ROOT = Path(__file__).resolve().parents[2]
GRAFANA = ROOT / "deploy" / "grafana"
PAGE = ROOT / "docs" / "operate" / "monitoring.md"


def _panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


@pytest.fixture(params=[board.name for board in BOARDS])
def board(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GRAFANA / f"{request.param}.json").read_text())
    return found


def test_the_files_are_those_of_the_code() -> None:
    assert {path.name: path.read_text() for path in GRAFANA.glob("*.json")} == board_files()


def test_panels_lie_side_by_side(board: dict[str, Any]) -> None:
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= COLUMNS for place in places)
    assert not [pair for pair in combinations(places, 2) if _overlap(*pair)]


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    def crosses(at: str, size: str) -> bool:
        return one[at] < other[at] + other[size] and other[at] < one[at] + one[size]

    return crosses("x", "w") and crosses("y", "h")


def test_each_panel_is_whole(board: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    for panel in _panels(board):
        assert panel["title"] and panel["description"] and panel["targets"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in get_args(Unit)
        assert all(target["datasource"] == DATASOURCE and target["legendFormat"] for target in panel["targets"])
        names = [target["refId"] for target in panel["targets"]]
        assert len(names) == len(set(names))


def test_each_variable_of_a_board_is_defined(board: dict[str, Any]) -> None:
    defined = {variable["name"] for variable in board["templating"]["list"]}
    expressions = " ".join(target["expr"] for panel in _panels(board) for target in panel["targets"])
    assert set(re.findall(r"\$(\w+)", expressions)) - {"__rate_interval"} <= defined
    assert DATASOURCE["uid"].strip("${}") in defined


def test_boards_link_to_one_another() -> None:
    boards = [json.loads(text) for text in board_files().values()]
    for each in boards:
        linked = {link["url"].removeprefix("/d/") for link in each["links"]}
        assert linked == {other["uid"] for other in boards} - {each["uid"]}


@pytest.mark.parametrize("start", ["promtool", "python"])
def test_commands_of_the_page_run(start: str) -> None:
    """Those that end by themselves."""
    text = PAGE.read_text().replace(".venv/bin/python -m", f"{sys.executable} -m")
    program = sys.executable if start == "python" else start
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed: apt-get install prometheus")
    commands = [line for line in text.splitlines() if line.startswith(program)]
    assert commands
    for command in commands:
        words = shlex.split(command.partition(" > ")[0])
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        if start == "python":
            assert done.stdout.count("runbook_url: https://kvarn.example.com/") == len(RULES)


def test_alertmanager_reads_its_example() -> None:
    program = shutil.which("amtool") or pytest.skip("amtool is not installed: apt-get install prometheus-alertmanager")
    example = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"
    route = [program, "config", "routes", "test", f"--config.file={example}"]
    for severity, receiver in (("P1", "page"), ("P2", "today"), ("P3", "week")):
        done = subprocess.run([*route, f"severity={severity}"], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == receiver
