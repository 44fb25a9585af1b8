"""What a batch used: on the batch itself and in its answers it is the same; the ledger also has what was broken off."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from batch_jobs import CHAT, WaitFor, await_end, chat_line, outputs, read_file, send
from kvarn.replica.client.protocol import RequestRefusedError
from kvarn.store.ledger import UsageFilter, UsageSum
from kvarn.store.repositories.usage.sums import sums
from kvarn.wire.messages import RefusalReason

EMBED = "/v1/embeddings"
NAMES = ("input_tokens", "cached_tokens", "output_tokens")


def on_ledger(runner: Any, batch: dict[str, Any], requests: int, wait_for: WaitFor) -> UsageSum:
    """The sum of a batch's events, once there are so many."""

    wait_for(lambda: sum(each.requests for each in sums_of(runner, batch)) >= requests, f"{requests} events")
    (found,) = sums_of(runner, batch)
    assert found.requests == requests
    return found


def sums_of(runner: Any, batch: dict[str, Any], *group_by: str) -> list[UsageSum]:
    where = UsageFilter(batch_ids=(batch["id"],))
    end = int(runner.gateway.store.now()) + 10
    found: list[UsageSum] = runner.do(sums(runner.gateway.store, where, start=0, end=end, group_by=group_by))
    return found


def of_batch(batch: dict[str, Any]) -> tuple[int, int, int]:
    usage = batch["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]


def of_answers(client: httpx.Client, batch: dict[str, Any]) -> tuple[int, int, int]:
    told = [line["response"]["body"]["usage"] for line in read_file(client, batch, "output_file_id")]
    return (
        sum(usage["prompt_tokens"] for usage in told),
        sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in told),
        sum(usage["completion_tokens"] for usage in told),
    )


def test_a_batch_its_answers_and_the_ledger_say_the_same(runner, wait_for):
    runner.chat.cached_tokens = 3
    with runner.client() as client:
        first = await_end(client, send(client, [chat_line(i, n=1 + i % 2) for i in range(20)]), wait_for)
        other = await_end(client, send(client, [chat_line(0)]), wait_for)
        assert client.post(CHAT, json=chat_line(0)["body"]).status_code == 200
        for batch, count in ((first, 20), (other, 1)):
            found = on_ledger(runner, batch, count, wait_for)
            counted = tuple(getattr(found, name) for name in NAMES)
            assert counted == of_batch(batch) == of_answers(client, batch) and min(counted) > 0


def test_embeddings_count_what_goes_in(runner, wait_for):
    line = {"custom_id": "e", "method": "POST", "url": EMBED, "body": {"model": "vec", "input": ["abc", "de"]}}
    with runner.client() as client:
        batch = await_end(client, send(client, [line], EMBED), wait_for)
        assert of_batch(batch) == (5, 0, 0)
        assert on_ledger(runner, batch, 1, wait_for).input_tokens == 5


def test_a_line_that_the_engine_refuses_has_used_nothing(runner, wait_for):
    runner.chat.refusal = RequestRefusedError(RefusalReason.PROMPT_TOO_LONG, "too long")
    with runner.client() as client:
        batch = await_end(client, send(client, [chat_line(0)]), wait_for)
        assert outputs(client, batch)["r0"]["response"]["status_code"] == 400
        assert of_batch(batch) == (0, 0, 0)


@pytest.mark.thorough
def test_what_a_cancel_broke_off_is_on_the_ledger_only(runner, wait_for):
    runner.chat.step_s = 0.05
    with runner.client() as client:
        batch = send(client, [chat_line(i) for i in range(4)])
        wait_for(lambda: runner.chat.yields > 8, "lines to be under way")
        client.post(f"/v1/batches/{batch['id']}/cancel")
        await_end(client, batch, wait_for, "cancelled")
        answered = len(read_file(client, batch, "output_file_id"))
        assert answered < 4 and of_batch(batch) == of_answers(client, batch)
        total = on_ledger(runner, batch, 4, wait_for)
        assert total.output_tokens > of_batch(batch)[2]
        aborted = [each for each in sums_of(runner, batch, "outcome") if each.group["outcome"] == "aborted"]
        assert [each.requests for each in aborted] == [4 - answered]
