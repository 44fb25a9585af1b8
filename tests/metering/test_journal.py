"""What a gateway knows outlives it, whatever moment it ends at."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvarn.metering import journal as journals
from kvarn.metering.journal import Journal, dead_journals, decode_event
from kvarn.metering.prices import PriceBook
from kvarn.metering.slots import SLOTS_PER_FILE, Slot
from sample_usage import make_event, make_request

DIES_IN_FLIGHT = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from kvarn.metering.event import InFlight
from kvarn.metering.journal import Journal
journal = Journal(Path(sys.argv[1]))
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


def begin(journal: Journal, request: Any) -> Slot:
    slot = journal.begin(request, 0.0)
    assert slot is not None
    return slot


def spooled(journal: Any) -> list[str]:
    return [decode_event(record).id for record in journal.spool.read(1000).records]


def test_requests_in_flight_outlive_a_killed_process(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", DIES_IN_FLIGHT, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    (dead,) = dead_journals(tmp_path)
    lost = dead.lost(PriceBook(), "usd")
    # The engine was never asked about the first one.
    assert [(event.id, event.input_tokens, event.cached_tokens, event.output_tokens) for event in lost] == [
        ("use_1", 7, 3, 1),
        ("use_2", 7, 3, 2),
    ]
    assert {event.outcome for event in lost} == {"lost"} and lost[0].ttft_ms == 500
    dead.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_journal_of_a_living_gateway_is_left_alone(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    begin(journal, make_request(1)).watch(tokens(5))
    assert list(dead_journals(tmp_path)) == []
    journal.close()
    (dead,) = dead_journals(tmp_path)
    assert [event.id for event in dead.lost(PriceBook(), "usd")] == ["use_1"]
    assert list(dead_journals(tmp_path)) == []  # taken over by this process
    dead.release()
    (again,) = dead_journals(tmp_path)
    again.release()


def test_a_finished_request_leaves_its_slot_to_the_next(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(3 * SLOTS_PER_FILE):
        slot = begin(journal, make_request(number))
        slot.watch(tokens(5))
        journal.finish(slot, make_event(number))
    assert len(list(tmp_path.glob("*/slots-*"))) == 1
    journal.close()
    (dead,) = dead_journals(tmp_path)
    assert dead.lost(PriceBook(), "usd") == []
    assert spooled(dead) == [f"use_{number}" for number in range(3 * SLOTS_PER_FILE)]
    dead.release()


def test_more_requests_than_slots_get_more_slots(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(SLOTS_PER_FILE + 1):
        begin(journal, make_request(number)).watch(tokens(5, number))
    journal.close()
    (dead,) = dead_journals(tmp_path)
    lost = dead.lost(PriceBook(), "usd")
    assert sorted(event.output_tokens for event in lost) == list(range(SLOTS_PER_FILE + 1))
    dead.release()


def test_a_journal_that_is_done_leaves_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.finish(begin(journal, make_request(1)), make_event(1))
    begin(journal, make_request(2)).free()
    journal.spool.done(journal.spool.read(10))
    journal.close()
    assert list(tmp_path.iterdir()) == []


def test_a_gateway_that_died_at_its_first_or_last_moment_leaves_no_lock(tmp_path: Path) -> None:
    (tmp_path / "0123.lock").touch()
    journal = Journal(tmp_path)
    assert list(dead_journals(tmp_path)) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [journal.name, f"{journal.name}.lock"]
    journal.close()


def test_a_slot_that_was_half_written_is_free(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(2):
        begin(journal, make_request(number)).watch(tokens(5))
    journal.close()
    (path,) = tmp_path.glob("*/slots-*")
    content = bytearray(path.read_bytes())
    content[64] ^= 0xFF  # in the identity of the first slot
    path.write_bytes(content)
    (dead,) = dead_journals(tmp_path)
    assert len(dead.lost(PriceBook(), "usd")) == 1
    dead.release()


def test_where_the_disk_is_full_requests_go_on_and_their_events_wait_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path)
    slot = begin(journal, make_request(1))
    slot.watch(tokens(5, 5))

    def no_room(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", no_room)
    monkeypatch.setattr(os, "open", no_room)
    journal.finish(slot, make_event(1))
    assert [event.id for event, _ in journal.unwritten] == ["use_1"]
    monkeypatch.setattr(journals, "MAX_UNWRITTEN", 1)
    journal.finish(None, make_event(2))
    assert journal.dropped == 1 and len(journal.unwritten) == 1
    monkeypatch.undo()
    journal.close()
    (dead,) = dead_journals(tmp_path)
    assert spooled(dead) == ["use_1"] and dead.lost(PriceBook(), "usd") == []
    dead.release()


def test_a_request_whose_slot_cannot_be_made_goes_on_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path)

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    assert journal.begin(make_request(1), 0.0) is None
    monkeypatch.undo()
    assert journal.begin(make_request(1, model="é" * 3000), 0.0) is None
    assert journal.begin(make_request(2), 0.0) is not None
    journal.close()


def test_a_slot_that_cannot_be_read_costs_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(tmp_path)
    for number in range(2):
        begin(journal, make_request(number)).watch(tokens(5))
    journal.close()
    (path,) = tmp_path.glob("*/slots-*")
    content = bytearray(path.read_bytes())
    rubbish = b"no request"
    content[64 : 64 + len(rubbish)] = rubbish
    content[:8] = struct.pack("<Q", len(rubbish) << 32 | zlib.crc32(rubbish))  # whole, as its checksum says
    path.write_bytes(content)
    (dead,) = dead_journals(tmp_path)
    assert len(dead.lost(PriceBook(), "usd")) == 1
    assert rubbish.hex() in caplog.text
    dead.release()
