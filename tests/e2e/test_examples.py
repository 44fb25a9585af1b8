"""The programs in `examples/` run against a server as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from profiles import thorough

EXAMPLES = Path(__file__).parents[2] / "examples"
RUNS = {
    "chat.py": (["What is TTFT?"], "first token"),
    "conversation.py": (["What is TTFT?", "What is TPOT?"], "What is TPOT? "),
    "structured.py": (["Who wrote the first program?"], "born: "),
    "tools.py": (["What is the weather in Stockholm?"], "called get_weather("),
    "batch.py": (["What is TTFT?", "What is TPOT?"], "What is TPOT? "),
    "embeddings.py": (["a cat", "a kitten", "a motorway"], "a kitten"),
}
"""The arguments of each, and a part of what it prints."""
COVERED = {"conversation.py"}  # what it asks, the page of responses asks by curl: test_documented_requests.py


@pytest.mark.parametrize("name", [thorough(name) if name in COVERED else name for name in RUNS])
def test_an_example_runs(server, name):
    arguments, printed = RUNS[name]
    model = ["--model", "minilm"] if name == "embeddings.py" else []
    command = [sys.executable, str(EXAMPLES / name), *arguments, "--url", f"{server.url}/v1", *model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


def test_every_example_is_run():
    assert {path.name for path in EXAMPLES.glob("*.py")} == RUNS.keys()
