"""A process for the next start: made after one, taken by the next, ended if none comes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvarn.fleet.launch.preloaded_process import NextProcess


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
        self.status: int | None = None
        self.closed = False
        self.popen = SimpleNamespace(poll=lambda: self.status)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    found = Timers()
    monkeypatch.setattr("kvarn.fleet.launch.preloaded_process.asyncio.get_running_loop", lambda: found)
    return found


@pytest.fixture
def made() -> list[Process]:
    return []


@pytest.fixture
def ahead(timers: Timers, made: list[Process]) -> NextProcess:
    def spawn(imports: str) -> Any:
        made.append(Process(imports))
        return made[-1]

    return NextProcess(spawn)


def test_the_restart_after_the_first_finds_a_process_and_so_do_those_that_follow(ahead, timers, made) -> None:
    assert ahead.take("module") is None and not made, "the first restart has the machine to itself"
    for number in range(3):
        timers.advance(3.0)
        assert len(made) == number + 1
        assert ahead.take("module") is made[number]
    assert not any(process.closed for process in made)


def test_two_restarts_at_once_share_one_and_one_follows(ahead, timers, made) -> None:
    ahead.take("module")
    timers.advance(3.0)
    assert [ahead.take("module"), ahead.take("module")] == [made[0], None]
    timers.advance(3.0)
    assert len(made) == 2


def test_without_another_restart_it_is_ended(ahead, timers, made) -> None:
    ahead.take("module")
    timers.advance(3.0)
    timers.advance(59.0)
    assert not made[0].closed
    timers.advance(2.0)
    assert made[0].closed
    timers.advance(100.0)
    assert len(made) == 1 and ahead.take("module") is None


@pytest.mark.parametrize("why", ["it ended", "it imports something else"])
def test_one_that_does_not_serve_is_not_taken(ahead, timers, made, why) -> None:
    ahead.take("module")
    timers.advance(3.0)
    made[0].status = 1 if why == "it ended" else None
    assert ahead.take("module" if why == "it ended" else "another") is None
    assert made[0].closed


def test_nothing_is_left_once_it_is_closed(ahead, timers, made) -> None:
    ahead.take("module")
    ahead.close()
    timers.advance(100.0)
    assert not made
    assert ahead.take("module") is None
    timers.advance(100.0)
    assert not made
