"""A process for the next start: made after one, taken by the next, ended if none comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvarn.fleet.launch.engine_process import EngineProcess
from kvarn.fleet.launch.local import PreloadedProcess


class Timers:
    """A loop whose time passes when told."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, Any, Any]] = []

    def call_later(self, seconds: float, act: Any) -> SimpleNamespace:
        handle = SimpleNamespace(cancelled=False)
        handle.cancel = lambda: setattr(handle, "cancelled", True)
        self._due.append((self.now + seconds, act, handle))
        return handle

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for each in [each for each in self._due if each[0] <= self.now]:
            self._due.remove(each)
            if not each[2].cancelled:
                each[1]()


class Process:
    def __init__(self, imports: str) -> None:
        self.imports = imports
        self.runs = True
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    found = Timers()
    monkeypatch.setattr("kvarn.fleet.launch.local.asyncio.get_running_loop", lambda: found)
    return found


@pytest.fixture
def made() -> list[Process]:
    return []


@pytest.fixture
def preloaded(timers: Timers, made: list[Process]) -> PreloadedProcess:
    def spawn(imports: str) -> Any:
        made.append(Process(imports))
        return made[-1]

    return PreloadedProcess(spawn)


def test_the_restart_after_the_first_finds_a_process_and_so_do_those_that_follow(preloaded, timers, made) -> None:
    assert preloaded.take("module") is None and not made, "the first restart has the machine to itself"
    for number in range(3):
        timers.advance(3.0)
        assert len(made) == number + 1
        assert preloaded.take("module") is made[number]
    assert not any(process.closed for process in made)


def test_two_restarts_at_once_share_one_and_one_follows(preloaded, timers, made) -> None:
    preloaded.take("module")
    timers.advance(3.0)
    assert [preloaded.take("module"), preloaded.take("module")] == [made[0], None]
    timers.advance(3.0)
    assert len(made) == 2


def test_without_another_restart_it_is_ended(preloaded, timers, made) -> None:
    preloaded.take("module")
    timers.advance(3.0)
    timers.advance(59.0)
    assert not made[0].closed
    timers.advance(2.0)
    assert made[0].closed
    timers.advance(100.0)
    assert len(made) == 1 and preloaded.take("module") is None


@pytest.mark.parametrize("why", ["it ended", "it imports something else"])
def test_one_that_does_not_serve_is_not_taken(preloaded, timers, made, why) -> None:
    preloaded.take("module")
    timers.advance(3.0)
    made[0].runs = why != "it ended"
    assert preloaded.take("module" if why == "it ended" else "another") is None
    assert made[0].closed


def test_nothing_is_left_once_it_is_closed(preloaded, timers, made) -> None:
    preloaded.take("module")
    preloaded.close()
    timers.advance(100.0)
    assert not made
    assert preloaded.take("module") is None
    timers.advance(100.0)
    assert not made


def test_a_stopped_process_does_not_count_as_running(tmp_path: Path) -> None:
    popen = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = EngineProcess(popen, tmp_path, spawned_at=0.0)
    assert process.runs
    popen.send_signal(signal.SIGSTOP)
    os.waitpid(popen.pid, os.WUNTRACED)
    assert not process.runs
    process.close()
    assert not process.runs
