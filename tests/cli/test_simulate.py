"""`kvarn simulate` as it is typed."""

from __future__ import annotations

import json
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from kvarn.cli.simulate import app
from simulated_fleet import modelled

RUNNER = CliRunner()


@pytest.fixture
def replica(tmp_path: Path) -> Path:
    path = tmp_path / "box.json"
    path.write_bytes(msgspec.json.encode(modelled()))
    return path


def test_a_replica_and_a_preset_are_enough(replica: Path) -> None:
    done = RUNNER.invoke(
        app, ["--replica", str(replica), "--traffic", "sharegpt", "--rps", "2", "--duration", "5s", "--json", "-"]
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["all"]["ends"]["answered"] == report["all"]["arrived"] > 0
    assert report["duration_s"] == 5.0


def test_recorded_traffic_asks_the_only_model_whatever_the_trace_calls_it(replica: Path, tmp_path: Path) -> None:
    trace = tmp_path / "day.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 20, "output_length": 5, "hash_ids": [1], "model": "other"}\n')
    done = RUNNER.invoke(
        app, ["--replica", str(replica), "--traffic", str(trace), "--duration", "2s", "--rps", "2", "--json", "-"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["all"]["ends"]["answered"] > 0


def test_a_what_if_is_shown_beside_what_is_and_drawn(replica: Path, tmp_path: Path) -> None:
    flags = ["--replica", str(replica), "--rps", "4", "--prompt-tokens", "64:128", "--output-tokens", "20"]
    page, log = tmp_path / "report.html", tmp_path / "log.jsonl"
    done = RUNNER.invoke(
        app,
        [*flags, "--duration", "4", "--what-if", "models.0.replicas=2", "--html", str(page), "--log", str(log)],
        env={"COLUMNS": "80"},
    )
    assert done.exit_code == 0, done.output
    assert "models.0.replicas=2" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    drawn = page.read_text()
    assert drawn.count("<svg") >= 6
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "")
    assert json.loads(log.read_text().splitlines()[-1])["event"] == "end"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "name a scenario"),
        (["nowhere.yaml"], "cannot read nowhere.yaml"),
        (["--traffic", "nowhere.csv"], "cannot read the trace"),
        (["--rps", "2", "--set", "models.0.x=1"], "is not a known setting"),
        (["--rps", "2", "--duration", "long"], "is no duration"),
        ([], "give --traffic, --rps"),
    ],
)
def test_wrong_use_says_what_to_do(flags: list[str], words: str, replica: Path) -> None:
    given = flags if words in ("name a scenario", "cannot read nowhere.yaml") else ["--replica", str(replica), *flags]
    done = RUNNER.invoke(app, given)
    assert done.exit_code in (1, 2)
    assert words in done.output


@pytest.mark.parametrize("output", ["--log", "--json", "--html"])
def test_a_full_disk_is_told_with_the_files_name(replica: Path, output: str) -> None:
    flags = ["--replica", str(replica), "--traffic", "sharegpt", "--rps", "1", "--duration", "2s"]
    done = RUNNER.invoke(app, [*flags, output, "/dev/full"])
    assert done.exit_code == 1
    assert "/dev/full: No space left on device" in done.stderr


def test_a_killed_process_is_told(replica: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(self: Future[object]) -> object:
        raise BrokenProcessPool

    monkeypatch.setattr(Future, "result", killed)
    models = "[{name: a, path: a}, {name: b, path: b}]"
    scenario = tmp_path / "two.yaml"
    scenario.write_text(
        f"config: {{models: {models}}}\nreplicas: {{a: {replica}, b: {replica}}}\n"
        "traffic: [{model: a, rate: 1}, {model: b, rate: 1}]\nduration_s: 1\n"
    )
    done = RUNNER.invoke(app, [str(scenario), "--jobs", "2"])
    assert done.exit_code == 1
    assert "was killed" in done.stderr
