"""What a gateway knows outlives it, whatever moment it ends at."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvarn.metering import journal as journals
from kvarn.metering.journal import FIRST_SLOTS, Journal, LiveJournal, Slot, dead_journals, decode_event
from kvarn.metering.prices import PriceBook
from sample_usage import make_event, make_request

DIES_IN_FLIGHT = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from kvarn.metering.event import InFlight
from kvarn.metering.journal import LiveJournal
journal = LiveJournal(Path(sys.argv[1]))
for number in range(3):
    request = InFlight(id=f"use_{number}", request_id="r", organization_id="o", project_id="p", endpoint="/e",
                       model="m", started=1000.0)
    slot = journal.begin(request, 5.0)
    if number:
        slot.watch(SimpleNamespace(prompt_tokens=7, cached_tokens=3, completion_tokens=0, first_token=None))
        slot.watch(SimpleNamespace(prompt_tokens=7, cached_tokens=3, completion_tokens=number, first_token=5.5))
os.kill(os.getpid(), signal.SIGKILL)
"""


def tokens(prompt: int, output: int = 0) -> Any:
    return SimpleNamespace(prompt_tokens=prompt, cached_tokens=0, completion_tokens=output, first_token=None)


def begin(journal: LiveJournal, request: Any) -> Slot:
    slot = journal.begin(request, 0.0)
    assert slot is not None
    return slot


def finished(journal: Journal) -> list[str]:
    return [decode_event(record).id for _, record in journal.read(1000)]


def lost(journal: Journal) -> list[Any]:
    return journal.lost(PriceBook(), "usd")


def no_room(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_requests_in_flight_outlive_a_killed_process(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", DIES_IN_FLIGHT, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    (dead,) = dead_journals(tmp_path)
    found = lost(dead)
    # The engine was never asked about the first one.
    assert [(event.id, event.input_tokens, event.cached_tokens, event.output_tokens) for event in found] == [
        ("use_1", 7, 3, 1),
        ("use_2", 7, 3, 2),
    ]
    assert {event.outcome for event in found} == {"lost"} and found[0].ttft_ms == 500
    dead.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_journal_of_a_living_gateway_is_left_alone(tmp_path: Path) -> None:
    journal = LiveJournal(tmp_path)
    begin(journal, make_request(1)).watch(tokens(5))
    assert list(dead_journals(tmp_path)) == []
    other = "import sys; from pathlib import Path; from kvarn.metering.journal import *; "
    other += "sys.exit(len(list(dead_journals(Path(sys.argv[1])))))"
    assert subprocess.run([sys.executable, "-c", other, str(tmp_path)], check=False).returncode == 0
    journal.close()
    (dead,) = dead_journals(tmp_path)
    assert [event.id for event in lost(dead)] == ["use_1"]
    assert list(dead_journals(tmp_path)) == []  # taken over by this process
    dead.release()
    (again,) = dead_journals(tmp_path)
    again.release()


def test_finished_events_are_read_in_order_until_they_are_deleted(tmp_path: Path) -> None:
    journal = LiveJournal(tmp_path)
    for number in range(5):
        journal.finish(None, make_event(number))
    first = journal.read(3)
    assert first == journal.read(3)
    journal.finish(None, make_event(5))  # comes while the first are written
    journal.delete(first)
    assert finished(journal) == ["use_3", "use_4", "use_5"] and journal.waiting == 3
    journal.delete(journal.read(9))
    assert (journal.waiting, journal.size) == (0, 0)
    journal.finish(None, make_event(6))
    journal.close()
    (dead,) = dead_journals(tmp_path)
    assert finished(dead) == ["use_6"] and dead.waiting == 1
    dead.release()


def test_a_finished_request_leaves_its_slot_to_the_next(tmp_path: Path) -> None:
    journal = LiveJournal(tmp_path)
    for number in range(3 * FIRST_SLOTS):
        slot = begin(journal, make_request(number))
        slot.watch(tokens(5))
        journal.finish(slot, make_event(number))
    (counts,) = tmp_path.glob("*.counts")
    assert counts.stat().st_size == FIRST_SLOTS * 40
    journal.close()
    (dead,) = dead_journals(tmp_path)
    assert lost(dead) == []
    assert finished(dead) == [f"use_{number}" for number in range(3 * FIRST_SLOTS)]
    dead.release()


def test_more_requests_than_slots_get_more_slots(tmp_path: Path) -> None:
    journal = LiveJournal(tmp_path)
    count = 3 * FIRST_SLOTS
    slots = [begin(journal, make_request(number)) for number in range(count)]
    for number, slot in enumerate(slots):
        slot.watch(tokens(5, number))
    journal.close()
    (dead,) = dead_journals(tmp_path)
    assert sorted(event.output_tokens for event in lost(dead)) == list(range(count))
    dead.release()


def test_a_journal_that_is_done_leaves_nothing(tmp_path: Path) -> None:
    journal = LiveJournal(tmp_path)
    journal.finish(begin(journal, make_request(1)), make_event(1))
    journal.free(begin(journal, make_request(2)))
    journal.delete(journal.read(10))
    journal.close()
    assert list(tmp_path.iterdir()) == []


def test_a_gateway_that_died_while_it_made_its_journal_leaves_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "0123.db").touch()
    (dead,) = dead_journals(tmp_path)
    assert finished(dead) == [] and lost(dead) == []
    dead.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_journal_that_cannot_be_read_is_left_and_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "0123.db").write_bytes(b"no database" * 1000)
    assert list(dead_journals(tmp_path)) == []
    assert [path.name for path in tmp_path.iterdir()] == ["0123.db"]
    assert "cannot be read" in caplog.text


def test_where_the_disk_is_full_requests_go_on_and_their_events_wait_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = LiveJournal(tmp_path)
    slot = begin(journal, make_request(1))
    slot.watch(tokens(5, 5))

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(journal, "append", full)
    journal.finish(slot, make_event(1))
    assert [event.id for event, _ in journal.unwritten] == ["use_1"]
    monkeypatch.setattr(journals, "MAX_UNWRITTEN", 1)
    journal.finish(None, make_event(2))
    assert journal.dropped == 1 and len(journal.unwritten) == 1
    monkeypatch.undo()
    journal.close()
    (dead,) = dead_journals(tmp_path)
    assert finished(dead) == ["use_1"] and lost(dead) == []
    dead.release()


def test_an_event_that_never_found_room_is_still_known_by_its_slot(tmp_path: Path) -> None:
    journal = LiveJournal(tmp_path, max_bytes=10)
    slot = begin(journal, make_request(1))
    slot.watch(tokens(5, 5))
    journal.finish(slot, make_event(1))
    journal.close()
    (dead,) = dead_journals(tmp_path)
    assert finished(dead) == [] and [event.id for event in lost(dead)] == ["use_1"]
    dead.release()


def test_a_request_whose_slot_cannot_be_made_goes_on_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = LiveJournal(tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", no_room)
    assert journal.begin(make_request(1), 0.0) is None
    monkeypatch.undo()
    assert journal.begin(make_request(2), 0.0) is not None
    journal.close()


def test_a_request_that_cannot_be_read_costs_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = LiveJournal(tmp_path)
    for number in range(2):
        begin(journal, make_request(number)).watch(tokens(5))
    journal.close()
    (path,) = tmp_path.glob("*.db")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE in_flight SET request = ? WHERE slot = 0", (b"no request",))
    database.close()
    (dead,) = dead_journals(tmp_path)
    assert len(lost(dead)) == 1
    assert b"no request".hex() in caplog.text
    dead.release()
