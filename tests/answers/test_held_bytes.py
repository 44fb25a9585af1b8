"""Memory for bodies: never more than there is, most of it for one, some of it for whoever comes next."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from kvarn.answers.held_bytes import BodyRefusedError, ByteBudget, HeldBytes, memory_of
from kvarn.answers.record import RequestRecord
from kvarn.store.owner import ANYBODY, Owner
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.parse import decode_body, validate

MOST = 100_000
STEP = 100


def fill(budget: ByteBudget, *names: str) -> dict[str, int]:
    """Let organisations take in turns until all of them are refused; what each holds."""
    held = dict.fromkeys(names, 0)
    eager = set(names)
    while eager:
        for name in sorted(eager):
            try:
                budget.take(name, STEP, 0)
                held[name] += STEP
            except BodyRefusedError:
                eager.remove(name)
    return held


def test_one_alone_holds_three_quarters():
    assert fill(ByteBudget(MOST), "red") == {"red": 75_000}


def test_those_who_take_all_they_can_hold_the_same():
    held = fill(ByteBudget(MOST), "red", "blue")
    assert all(abs(size - MOST * 3 / 7) <= STEP for size in held.values())


@pytest.mark.parametrize("greedy", [1, 2, 5, 20])
def test_whoever_comes_next_finds_memory_free(greedy):
    budget = ByteBudget(MOST)
    fill(budget, *[f"org-{number}" for number in range(greedy)])
    free = MOST - budget.used
    assert free >= MOST / (3 * greedy + 1) - STEP
    budget.take("new", free // 2, 0)
    assert budget.used < MOST


def test_a_refusal_says_whose_memory_it_is():
    budget = ByteBudget(MOST)
    fill(budget, "red")
    with pytest.raises(BodyRefusedError) as own:
        budget.take("red", STEP, 0)
    assert (own.value.status, own.value.code) == (429, "over_share")
    with pytest.raises(BodyRefusedError) as others:
        budget.take("blue", 24_000, 0)
    assert (others.value.status, others.value.code) == (503, "server_busy")
    with pytest.raises(BodyRefusedError) as never:
        budget.take("blue", 40_000, 40_000)
    assert (never.value.status, never.value.code) == (413, "request_too_large")
    assert "retry-after" not in never.value.headers and own.value.headers == others.value.headers == {
        "retry-after": "1"
    }


async def test_what_is_given_back_may_be_taken_again():
    budget = ByteBudget(MOST)
    record = RequestRecord("r", principal=replace(ANYBODY, owner=Owner("red", "p")))
    first, second = HeldBytes(budget, record), HeldBytes(budget, record)
    first.take(70_000)
    with pytest.raises(BodyRefusedError):
        second.take(10_000)
    first.resize(60_000)
    second.take(10_000)
    first.resize(65_000)
    assert budget.used == 75_000
    await record.close()
    assert budget.used == 0
    assert fill(budget, "blue") == {"blue": 75_000}


TOOL = {"type": "function", "function": {"name": "f"}}


def with_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"tools": [{**TOOL, "function": {"name": "f", "parameters": parameters}}]}


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"messages": [{"role": "user", "content": "words, " * 100_000}]}, id="text"),
        pytest.param({"messages": [{"role": "user", "content": "words, " * 100_000 + "😀"}]}, id="a wide character"),
        pytest.param({"messages": [{"role": "user", "content": "ord på svenska " * 50_000}]}, id="narrow characters"),
        pytest.param({"messages": [{"role": "user", "content": "x"}] * 10_000}, id="messages"),
        pytest.param(with_parameters({str(number): number for number in range(50_000)}), id="numbers"),
        pytest.param(with_parameters({"enum": [str(number) for number in range(50_000)]}), id="strings"),
    ],
)
def test_what_a_request_counts_for_is_what_it_takes(fields):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}).encode()
    tracemalloc.start()
    asked = validate(ChatCompletionRequest, decode_body(body))
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert asked.model == "m"
    assert 0.9 < memory_of(decode_body(body)) / taken < 1.6
