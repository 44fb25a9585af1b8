"""The programs in `examples/` run against a server as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
RUNS = {
    "chat.py": (["What is TTFT?"], "first token"),
    "tools.py": (["What is the weather in Stockholm?"], "-> 12 degrees, rain"),
    "structured_output.py": (["Who wrote the first program?"], "born="),
    "batch.py": (["What is TTFT?", "What is TPOT?"], "What is TPOT? "),
    "embeddings.py": (["a cat", "a kitten", "a motorway"], "a kitten"),
}
"""The arguments of each, and a part of what it prints."""


@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs(server, name):
    arguments, printed = RUNS[name]
    model = ["--model", "minilm"] if name == "embeddings.py" else []
    command = [sys.executable, str(EXAMPLES / name), *arguments, "--url", f"{server.url}/v1", *model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


def test_every_example_is_run():
    assert {path.name for path in EXAMPLES.glob("*.py")} == RUNS.keys()
