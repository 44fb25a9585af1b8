"""Which starts hang: by what is heard of them, and by what the system says they do."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvarn.fleet.supervision.engine_run import StartProgress
from kvarn.replica.session_work import SessionWork, session_work

TICK_S = 0.5


class Start:
    """A start that is watched, on a clock of its own."""

    def __init__(self, *, is_here: bool = True) -> None:
        self.watch = StartProgress(still_s=5, idle_s=60)
        self.is_here = is_here
        self.cpu_s = 0.0

    def passes(self, seconds: float, *, cpu_per_s: float = 0.0, beats: bool = False, disk: bool = False) -> str | None:
        """Why it is given up within these seconds."""
        for _ in range(int(seconds / TICK_S)):
            self.cpu_s += cpu_per_s * TICK_S
            done = SessionWork(self.cpu_s, 0, disk)
            if beats:
                self.watch.heard(done.amount)
            if self.is_here:
                self.watch.seen(done)
            if (problem := self.watch.passed(TICK_S, is_seen=self.is_here)) is not None:
                return problem
        return None


def test_a_start_that_computes_may_take_as_long_as_it_likes() -> None:
    assert Start().passes(500, cpu_per_s=0.5) is None
    assert Start().passes(500, cpu_per_s=0.5, beats=True) is None
    assert Start(is_here=False).passes(500, cpu_per_s=0.5, beats=True) is None


def test_a_stopped_process_is_noticed_as_soon_as_a_silent_engine() -> None:
    start = Start()
    assert start.passes(20, cpu_per_s=0.5, beats=True) is None
    assert start.passes(4.5) is None
    assert start.passes(1) == "the engine stood still for 5 s while it started"


def test_a_process_that_waits_for_a_disk_is_not_stopped() -> None:
    start = Start()
    assert start.passes(59, disk=True) is None
    assert start.passes(2, disk=True) == "the engine made no progress for 60 s while it started"


@pytest.mark.parametrize("is_here", [True, False], ids=["here", "elsewhere"])
def test_heartbeats_alone_are_no_progress(is_here: bool) -> None:
    """They come from a thread of their own, whose work is next to nothing."""
    start = Start(is_here=is_here)
    assert start.passes(30, cpu_per_s=0.5, beats=True) is None
    assert start.passes(59, cpu_per_s=0.0005, beats=True) is None
    assert start.passes(2, cpu_per_s=0.0005, beats=True) == "the engine made no progress for 60 s while it started"


def test_a_report_is_progress() -> None:
    start = Start()
    for _ in range(10):
        assert start.passes(50, beats=True) is None
        start.watch.reported()


def test_what_is_not_heard_of_an_engine_elsewhere_is_no_progress() -> None:
    assert Start(is_here=False).passes(60) is None
    assert Start(is_here=False).passes(61) == "the engine made no progress for 60 s while it started"


def process(proc: Path, pid: int, session: int, state: str, ticks: int, read: int) -> None:
    (proc / str(pid)).mkdir(parents=True)
    fields = [state, "1", "1", str(session), *["0"] * 7, str(ticks), "0", *["0"] * 30]
    (proc / str(pid) / "stat").write_text(f"{pid} (a (strange) name) {' '.join(fields)}\n")
    (proc / str(pid) / "io").write_text(f"rchar: 5\nread_bytes: {read}\nwrite_bytes: 0\n")


def test_the_work_of_a_session_is_that_of_all_its_processes(tmp_path: Path) -> None:
    process(tmp_path, 10, 10, "S", 100, 1000)
    process(tmp_path, 11, 10, "D", 50, 500)
    process(tmp_path, 12, 9, "R", 1000, 10_000)
    (tmp_path / "13").mkdir()  # it has ended meanwhile
    session_of = {10: 10, 11: 10, 12: 9, 13: 10}.__getitem__
    done = session_work(10, tmp_path, session_of)
    assert (done.cpu_s, done.read_bytes, done.waits_for_disk) == (pytest.approx(1.5), 1500, True)
    assert session_work(7, tmp_path, session_of) == SessionWork()
