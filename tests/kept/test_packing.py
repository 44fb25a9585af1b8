"""What is kept of a request: packed and opened again, and a row that the database takes."""

from __future__ import annotations

import pytest

from kept_rows import EVENTS, steps_of, traced
from kvarn.explain.explanation import Cause, CauseCode
from kvarn.kept.packing import MAX_STEP_BYTES, ROW_BYTES, Kept, pack, row_of, unpack
from kvarn.kept.sampling import KeptReason
from kvarn.observe.traces.spans import request_spans
from kvarn.observe.traces.traced import TracedTurn


def test_what_was_packed_is_the_same_again() -> None:
    turn = TracedTurn(id="a", model="tiny", prompt_tokens=7, finish_reasons=["stop"])
    kept = Kept(request=traced(turn, metadata={"k": "v"}, warnings=["w"]), steps={"a": steps_of(3)})
    opened = unpack(pack(kept))
    assert opened.steps == kept.steps
    assert list(opened.request.events) == EVENTS and list(opened.request.turns) == [turn]
    assert type(opened.request.events[2].numbers["bytes"]) is int
    assert request_spans(opened.request) == request_spans(kept.request)


def test_steps_that_are_too_many_are_left_out() -> None:
    kept = Kept(request=traced(), steps={"a": steps_of(100_000)})
    packed = pack(kept)
    assert len(packed) < MAX_STEP_BYTES and not unpack(packed).steps


@pytest.mark.parametrize("packed", [b"", b"x", pack(Kept(request=traced()))[:-9]])
def test_what_cannot_be_opened_says_so(packed: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        unpack(packed)


def test_a_row_has_what_the_request_had() -> None:
    turns = [
        TracedTurn(id="a", model="large", outcome="failed", refused=True, prompt_tokens=9),
        TracedTurn(id="a.1", model="tiny", replica="r2", prompt_tokens=9, cached_tokens=4, output_tokens=5),
    ]
    cause = Cause(code=CauseCode.QUEUE_BLOCKS, seconds=2.1)
    row = row_of(traced(*turns, status=200, session="s", route="/x"), KeptReason.SLOW, cause, 100)
    assert (row["total_us"], row["ttft_us"]) == (2_500_000, 1_250_000)
    assert row["started_us"] == 1_700_000_010_000_000
    assert (row["input_tokens"], row["cached_tokens"], row["output_tokens"]) == (18, 4, 5)
    assert (row["replica"], row["outcome"], row["reason"], row["session"]) == ("r2", "finished", "slow", "s")
    assert (row["key_id"], row["end_user"], row["kept_bytes"]) == (None, None, ROW_BYTES + 100)
    assert (row["cause"], row["cause_us"]) == ("queue: KV blocks", 2_100_000)


def test_clients_texts_fit_into_their_columns() -> None:
    row = row_of(traced(session="a\0" * 400, end_user="é" * 5000, error_code="x" * 100), KeptReason.ORDINARY, None, 0)
    assert (len(row["end_user"]), len(row["error_code"])) == (256, 64)
    assert row["session"] == "a" * 128


@pytest.mark.parametrize(
    ("status", "turn", "disconnected", "outcome"),
    [
        (200, {}, False, "finished"),
        (200, {"outcome": "failed"}, False, "failed"),
        (200, {"outcome": "failed", "refused": True}, False, "refused"),
        (429, {"outcome": "failed"}, False, "refused"),
        (503, {}, False, "failed"),
        (0, {"outcome": "aborted"}, True, "aborted"),
        (499, {}, False, "aborted"),
        (200, {"outcome": "aborted"}, True, "aborted"),
    ],
)
def test_the_outcome_is_how_it_ended_for_the_client(
    status: int, turn: dict[str, object], disconnected: bool, outcome: str
) -> None:
    ended = TracedTurn(id="a", model="tiny", **turn)  # type: ignore[arg-type]
    assert traced(ended, status=status, disconnected=disconnected).outcome == outcome
