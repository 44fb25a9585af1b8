"""The pure parts of batches: what an input line may be, and how many lines an engine has room for."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvarn.batches.capacity import LineGate, LineWindow
from kvarn.batches.validation import MAX_FAULTS, InputCheck, model_of, split_lines
from kvarn.wire.messages import EngineStats
from kvarn.wire.openai.parse import decode_body

CHAT = "/v1/chat/completions"


def line(**changes: Any) -> bytes:
    whole = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "tiny"}, **changes}
    return json.dumps({name: value for name, value in whole.items() if value is not None}).encode()


def faults(*lines: bytes, max_lines: int = 100, max_line_bytes: int = 1000) -> list[tuple[int | None, str]]:
    check = InputCheck(CHAT, max_lines, max_line_bytes)
    for number, text in enumerate(lines, 1):
        check.take(number, text)
    check.end()
    return [(fault.line, fault.code) for fault in check.faults]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"[]", "invalid_json_line"),
        (b'{"custom_id": "a"', "invalid_json_line"),
        (b'{"custom_id": "\xff"}', "invalid_json_line"),
        (b'{"body":' + b"[" * 500, "invalid_json_line"),
        (b'{"custom_id": NaN}', "invalid_json_line"),
        (line(custom_id=None), "missing_required_parameter"),
        (line(custom_id=""), "invalid_custom_id"),
        (line(custom_id=7), "invalid_custom_id"),
        (line(custom_id="x" * 513), "invalid_custom_id"),
        (line(custom_id="a\0"), "invalid_custom_id"),
        (line(method="GET"), "invalid_method"),
        (line(method=["POST"]), "invalid_method"),
        (line(url="/v1/embeddings"), "mismatched_url"),
        (line(body="x"), "invalid_body"),
        (line(priority=1), "unknown_parameter"),
        (line(custom_id="x" * 400, body={"x": "x" * 1000}), "line_too_long"),
    ],
)
def test_a_wrong_line_is_named(text: bytes, code: str) -> None:
    assert faults(line(custom_id="first"), b"", text) == [(3, code)]


def test_of_a_hopeless_input_no_more_is_told_than_helps() -> None:
    assert len(faults(*[b"{"] * 500, max_lines=1000)) == MAX_FAULTS
    assert faults(*[line(custom_id=str(i)) for i in range(4)], max_lines=3) == [(4, "too_many_requests")]
    assert faults() == [(None, "empty_file")]


def test_a_body_is_kept_as_it_was_written() -> None:
    text = b'{"body": {"z": 1.0, "a": "\\u0000", "m":  [1e3]}, "url": "%s", "method": "POST", "custom_id": "a"}'
    found = InputCheck(CHAT, 1, 1000).take(1, text % CHAT.encode())
    assert found is not None and found.body == b'{"z": 1.0, "a": "\\u0000", "m":  [1e3]}'


def test_the_model_of_a_batch_is_the_one_that_all_lines_name() -> None:
    check = InputCheck(CHAT, 10, 1000)
    check.take(1, line(custom_id="a"))
    assert check.model == "tiny"
    check.take(2, line(custom_id="b", body={"model": "other"}))
    assert check.model is None
    assert model_of({"model": 7}) is None and model_of({}) is None


def test_the_model_of_a_line_is_the_one_that_its_request_is_read_to_name() -> None:
    check = InputCheck(CHAT, 10, 1000, lambda name: name or "guard")
    twice = line().replace(b'"model": "tiny"', b'"model": 5, "model": "other", "\\u006dodel": "tiny"')
    found = check.take(1, twice)
    assert found is not None and found.model == decode_body(found.body)["model"] == "tiny"
    found = check.take(2, line(custom_id="b", body={}))
    assert found is not None and found.model == "guard"


async def lines_of(content: bytes, cuts: list[int], max_line_bytes: int) -> list[tuple[int, bytes]]:
    async def chunks() -> AsyncIterator[bytes]:
        edges = [0, *sorted(cut % (len(content) + 1) for cut in cuts), len(content)]
        for start, end in itertools.pairwise(edges):
            yield content[start:end]

    return [found async for found in split_lines(chunks(), max_line_bytes)]


@given(
    lines=st.lists(st.binary(max_size=12).map(lambda text: text.replace(b"\n", b"").replace(b"\r", b"")), max_size=8),
    cuts=st.lists(st.integers(0, 200), max_size=5),
)
def test_lines_are_the_same_wherever_the_file_is_cut(lines: list[bytes], cuts: list[int]) -> None:
    content = b"".join(text + b"\r\n" for text in lines)
    assume(not content.startswith(b"\xef\xbb\xbf"))
    found = asyncio.run(lines_of(content, cuts, 8))
    assert [number for number, _ in found] == list(range(1, len(lines) + 1))
    for (_, text), whole in zip(found, lines, strict=True):
        assert text == whole if len(whole) <= 8 else len(text) == 9 and whole.startswith(text)


async def test_a_last_line_needs_no_end_and_a_first_one_may_have_a_mark() -> None:
    assert await lines_of(b"\xef\xbb\xbf{}\n[]", [], 10) == [(1, b"{}"), (2, b"[]")]


def window(**changes: Any) -> LineWindow:
    return LineWindow(**{"most": 16, "tpot_target_s": 0.1, **changes})


def test_an_idle_engine_gets_one_line_more_with_every_answer() -> None:
    lines = window()
    sizes = []
    for _ in range(20):
        lines.in_flight = 0
        while lines.has_room(EngineStats(), 0.0):
            lines.in_flight += 1
        sizes.append(lines.in_flight)
        lines.grow()
    assert sizes == [*range(4, 16), *[16] * 8]


@pytest.mark.parametrize(
    "stats",
    [
        EngineStats(waiting=1, waiting_by_priority={0: 1}),
        EngineStats(waiting=3, waiting_by_priority={9: 1, 10: 2}),
        EngineStats(running=1, step_s=0.2),
    ],
)
def test_whatever_keeps_better_requests_waiting_halves_the_lines(stats: EngineStats) -> None:
    lines = window(most=64)
    for _ in range(60):
        lines.grow()
    assert not lines.has_room(stats, 0.0) and lines.size == 32
    assert not lines.has_room(stats, 0.5) and lines.size == 32  # the same sign, seen again
    assert not lines.has_room(stats, 1.0) and lines.size == 16
    for second in range(2, 20):
        lines.has_room(stats, float(second))
    assert lines.size == 1 and lines.has_room(EngineStats(), 20.0)


@pytest.mark.parametrize(
    "stats",
    [EngineStats(waiting=1, waiting_by_priority={10: 1}), EngineStats(kv_blocks_total=100, kv_blocks_free=9)],
)
def test_a_full_engine_gets_no_more_lines_and_keeps_its_pace(stats: EngineStats) -> None:
    lines = window()
    assert not lines.has_room(stats, 0.0) and lines.size == 4


def test_slow_steps_of_lines_alone_are_nobodys_concern() -> None:
    lines = window()
    lines.in_flight = 2
    assert lines.has_room(EngineStats(running=2, step_s=5.0), 0.0)


async def test_organisations_take_turns_and_lines_of_one_enter_in_the_order_in_which_they_came() -> None:
    stats = EngineStats(waiting=1, waiting_by_priority={0: 1})
    gate = LineGate(window(most=1), lambda: stats, lambda: 0.0)
    entered: list[int] = []

    async def enter(number: int) -> None:
        async with gate.place("red" if number < 4 else "blue"):
            entered.append(number)
            await asyncio.sleep(0.001)

    tasks = [asyncio.create_task(enter(number)) for number in range(6)]
    await asyncio.sleep(0.1)
    assert entered == []
    stats = EngineStats()
    tasks[1].cancel()  # one that leaves the queue holds nobody up, and costs its organisation no turn
    await asyncio.gather(*tasks, return_exceptions=True)
    assert entered == [0, 2, 4, 3, 5] and gate.window.in_flight == 0


async def test_a_gate_knows_for_how_long_nobody_has_gone_through_it() -> None:
    now = 100.0
    gate = LineGate(window(), EngineStats, lambda: now)
    async with gate.place("red"):
        now += 10
        assert gate.empty_s == 0
    now += 3
    assert gate.empty_s == 3
