"""What a line of a batch's input may be."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvarn.batches.validation import MAX_FAULTS, InputCheck, model_of, split_lines
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
def test_a_wrong_line_is_named(text, code):
    assert faults(line(custom_id="first"), b"", text) == [(3, code)]


def test_of_a_hopeless_input_no_more_is_told_than_helps():
    assert len(faults(*[b"{"] * 500, max_lines=1000)) == MAX_FAULTS
    assert faults(*[line(custom_id=str(i)) for i in range(4)], max_lines=3) == [(4, "too_many_requests")]
    assert faults() == [(None, "empty_file")]


def test_a_body_is_kept_as_it_was_written():
    text = b'{"body": {"z": 1.0, "a": "\\u0000", "m":  [1e3]}, "url": "%s", "method": "POST", "custom_id": "a"}'
    found = InputCheck(CHAT, 1, 1000).take(1, text % CHAT.encode())
    assert found is not None and found.body == b'{"z": 1.0, "a": "\\u0000", "m":  [1e3]}'


def test_the_model_of_a_batch_is_the_one_that_all_lines_name():
    check = InputCheck(CHAT, 10, 1000)
    check.take(1, line(custom_id="a"))
    assert check.model == "tiny"
    check.take(2, line(custom_id="b", body={"model": "other"}))
    assert check.model is None
    assert model_of({"model": 7}) is None and model_of({}) is None


def test_the_model_of_a_line_is_the_one_that_its_request_is_read_to_name():
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
def test_lines_are_the_same_wherever_the_file_is_cut(lines, cuts):
    content = b"".join(text + b"\r\n" for text in lines)
    assume(not content.startswith(b"\xef\xbb\xbf"))
    found = asyncio.run(lines_of(content, cuts, 8))
    assert [number for number, _ in found] == list(range(1, len(lines) + 1))
    for (_, text), whole in zip(found, lines, strict=True):
        assert text == whole if len(whole) <= 8 else len(text) == 9 and whole.startswith(text)


async def test_a_last_line_needs_no_end_and_a_first_one_may_have_a_mark():
    assert await lines_of(b"\xef\xbb\xbf{}\n[]", [], 10) == [(1, b"{}"), (2, b"[]")]
