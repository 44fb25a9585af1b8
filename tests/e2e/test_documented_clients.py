"""The lines that docs/start/clients.md prints for users of Claude Code, Codex and Ollama lead their clients here.

`make clients` runs the programs themselves; here the official packages read the same variables and settings.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import openai
import pytest

from coding_agents import PRINTED_MODEL, PRINTED_URL, variables_of
from lazy_modules import LazyModule

anthropic = LazyModule("anthropic")

PAGE = (Path(__file__).parents[2] / "docs/start/clients.md").read_text(encoding="utf-8")
SECTION = re.search(r"## Coding agents and Ollama's clients\n(.*)", PAGE, re.DOTALL)
MODEL = "kvarn-demo"


@pytest.fixture
def printed(server: Any):
    """The lines of a code block of the section, by a word that is in it, for the running server and its model."""
    assert SECTION is not None
    blocks = re.findall(r"```\w+\n(.*?)```", SECTION[1], re.DOTALL)

    def find(word: str) -> list[str]:
        (block,) = (block for block in blocks if word in block)
        here = re.sub(rf"\b{PRINTED_MODEL}\b", MODEL, block.replace(PRINTED_URL, server.url))
        lines: list[str] = here.splitlines()
        assert len(lines) == 3
        return lines

    return find


def test_claude_codes_variables(printed, monkeypatch):
    lines = printed("ANTHROPIC_BASE_URL")
    variables = variables_of(lines)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert lines[-1] == "claude"
    with anthropic.Anthropic(max_retries=0) as client:
        asked: Any = {"role": "user", "content": "What is 17 + 25?"}
        answer = client.messages.create(model=variables["ANTHROPIC_MODEL"], max_tokens=50, messages=[asked])
    (block,) = answer.content
    assert block.type == "text" and "42" in block.text


def test_codexs_settings(printed):
    settings = tomllib.loads("\n".join(printed("model_provider")))
    provider = settings["model_providers"][settings["model_provider"]]
    with openai.OpenAI(base_url=provider["base_url"], api_key="none", max_retries=0) as client:
        answer = client.responses.create(model=settings["model"], input="What is 17 + 25?", store=False)
    assert "42" in answer.output_text


def test_ollamas_lines(printed, monkeypatch):
    ollama = pytest.importorskip("ollama")
    first, *commands = printed("OLLAMA_HOST")
    for name, value in variables_of([first]).items():
        monkeypatch.setenv(name, value)
    (_, listing), (_, run, model, question) = map(shlex.split, commands)
    assert (listing, run) == ("list", "run")
    client = ollama.Client()
    assert model in {str(each.model).removesuffix(":latest") for each in client.list().models}
    answer = client.chat(model, [{"role": "user", "content": question}])
    assert answer.message.content
