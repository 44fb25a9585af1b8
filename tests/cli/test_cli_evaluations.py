"""`kvarn eval` against a running server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fake_replica import answer_text
from gateway_fixtures import GatewayServer, make_server, running
from kvarn.cli.evaluations import app
from kvarn.config.platform import BatchesConfig

Kvarn = Callable[..., Result]


@pytest.fixture
def server(checkpoint: Path, tmp_path: Path) -> Iterator[GatewayServer]:
    made = make_server(checkpoint)
    made.configure(batches=BatchesConfig(poll_s=0.05), data_dir=str(tmp_path / "data"))
    with running(made) as served:
        yield served


@pytest.fixture
def kvarn(server: GatewayServer, monkeypatch: pytest.MonkeyPatch) -> Kvarn:
    monkeypatch.setattr("kvarn.cli.evaluations._POLL_S", 0.02)

    def run(*arguments: str, code: int = 0, **options: Any) -> Result:
        done = CliRunner().invoke(app, [arguments[0], "--url", server.url, *arguments[1:]], **options)
        assert done.exit_code == code, done.output
        return done

    return run


def test_a_set_is_added_run_compared_and_shown(server: GatewayServer, kvarn: Kvarn, tmp_path: Path) -> None:
    server.chat.answer = lambda request, index: answer_text("Paris")
    file = tmp_path / "set.jsonl"
    items = [{"prompt": f"capital {number}?", "expected": "paris"} for number in range(8)]
    file.write_text("".join(json.dumps(item) + "\n\n" for item in items))
    assert kvarn("add", "capitals", str(file)).stdout == "capitals: version 1 with 8 items\n"
    more = json.dumps({"prompt": "a", "expected": "paris"})
    assert "version 2 with 9 items" in kvarn("add", "capitals", "-", "--append", "--note", "one", input=more).stdout
    assert "capitals" in kvarn("list").stdout
    good = json.loads(kvarn("run", "capitals", "-m", "tiny", "--json").stdout)
    assert good["score"] == 1.0 and good["set_version"] == 2
    kvarn("pin", "capitals", good["id"])

    server.chat.answer = lambda request, index: answer_text("Lyon")
    bad = json.loads(kvarn("run", "capitals", "-m", "tiny", "--json").stdout)
    compared = kvarn("compare", "capitals", bad["id"], good["id"]).stdout
    assert compared.lstrip().startswith("worse: 0.000 against 1.000") and "9 there only" in compared
    shown = kvarn("show", "capitals").stdout
    assert good["id"] in shown and "one" in shown
    lines = [json.loads(line) for line in kvarn("show", "capitals", "--version", "2").stdout.splitlines()]
    assert lines[0] == items[0] and len(lines) == 9
    results = [json.loads(line) for line in kvarn("show", "capitals", "--run", bad["id"]).stdout.splitlines()]
    assert [each["output"] for each in results] == ["Lyon"] * 9
    same = kvarn("run", "capitals", "-m", "tiny", "--against", "tiny").stdout
    assert "no difference shown" in same


def test_what_cannot_be_read_or_run_is_told_in_a_line(kvarn: Kvarn, tmp_path: Path) -> None:
    file = tmp_path / "set.jsonl"
    assert "cannot be read" in kvarn("add", "x", str(file), code=2).stderr
    file.write_text('{"prompt"\n')
    assert "line 1 of" in kvarn("add", "x", str(file), code=2).stderr
    file.write_text('{"prompt": "x"}\n')
    assert "An item needs 'expected'" in kvarn("add", "x", str(file), code=1).stderr
    assert "no evaluation set 'x'" in kvarn("run", "x", "-m", "tiny", code=1).stderr
