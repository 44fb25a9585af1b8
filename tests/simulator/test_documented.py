"""The commands of the guide, as they are printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvarn.cli.simulate import app

PAGE = (Path(__file__).parents[2] / "docs/guides/simulate.md").read_text(encoding="utf-8")
COMMANDS = [
    line for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) for line in block.splitlines()
]


@pytest.mark.parametrize("line", COMMANDS, ids=range(len(COMMANDS)))
def test_a_command_of_the_guide_does_what_it_says(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (scenario,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    Path("scenario.yaml").write_text(scenario, encoding="utf-8")
    program, command, *rest = shlex.split(line)
    assert (program, command) == ("kvarn", "simulate")
    done = CliRunner().invoke(app, rest)
    assert done.exit_code == 0, done.output
    assert "goodput" in done.stdout
    for name in ("report.html", "report.json", "events.jsonl"):
        assert Path(name).exists() == (name in line)
