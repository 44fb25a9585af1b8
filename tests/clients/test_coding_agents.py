"""Coding agents of npm and PyPI, headless, at the settings of docs/guides/coding_agents.md, write a file with Kvarn."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from coding_agents import AGENTS, CONTENT, DONE, FILE, printed_settings
from recording_proxy import recording, refusing_proxy
from scripted_checkpoint import write_scripted_checkpoint

PROGRAMS = Path(os.environ["CODING_AGENTS"])
PATHS = (PROGRAMS / "node_modules/.bin", PROGRAMS / "aider/bin", "/usr/local/bin", "/usr/bin", "/bin")
CONTEXT = 65_536
LIMIT_S = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each agent works, in a folder of its name: known before its model is made."""
    return tmp_path_factory.mktemp("agents")


@pytest.fixture(scope="module")
def url(folder: Path, serve_models: Callable[..., Any]) -> Iterator[str]:
    """A server with a model for each agent."""
    models = {agent.name: folder / "models" / agent.name for agent in AGENTS}
    for agent in AGENTS:
        write_scripted_checkpoint(models[agent.name], agent.turns(folder / agent.name), context=CONTEXT)
    with serve_models(models) as served:
        yield served


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_an_agent_writes_the_file_it_was_told_to(agent, url, folder, tmp_path):
    work, home = folder / agent.name, tmp_path
    work.mkdir()
    with ExitStack() as open_:
        recorder = open_.enter_context(recording(url, PROGRAMS / "requests" / agent.name))
        proxy, hosts = open_.enter_context(refusing_proxy())
        settings = printed_settings(agent.title, recorder.url, agent.name)
        for name, text in settings.files.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text)
        environment = {"PATH": ":".join(map(str, PATHS)), "HOME": str(home), "TERM": "dumb", **settings.variables}
        if agent.obeys_proxy:
            environment |= {"HTTPS_PROXY": proxy, "HTTP_PROXY": proxy, "NO_PROXY": "127.0.0.1"}
        done = subprocess.run(
            settings.command,
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    said = f"{done.stdout}\n{done.stderr}"
    refused = [(each["path"], each["status"], each["answer"]) for each in recorder.requests if each["status"] >= 400]
    assert not refused, said
    assert done.returncode == 0, said
    assert (work / FILE).is_file(), said
    assert (work / FILE).read_text() == CONTENT
    assert agent.tool is None or DONE in said
    assert set(hosts) <= set(agent.may_ask), "it asked other machines than the server"
