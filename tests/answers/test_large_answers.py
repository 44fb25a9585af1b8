"""Answers of tens of megabytes, read slowly or not at all: everybody else is answered, and their memory is counted.

How long the event loop is held up is told in its own processor time, which a busy machine does not change.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import msgspec
import pytest

from asking import CHAT
from batch_jobs import await_end, chat_line, outputs, send
from kvarn.text.logprobs import LogprobsEncoder
from profiles import thorough
from raw_http import post_of

COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"
CHOICES, TOKENS, TOP = 32, 1800, 20
POSITIONS = CHOICES * TOKENS
MIB = 1024 * 1024
WaitFor = Callable[..., None]


def body_of(path: str, **fields: Any) -> dict[str, Any]:
    """A request for as many log-probabilities as one may ask for."""
    common = {"model": "tiny", "n": CHOICES, "max_tokens": TOKENS, "ignore_eos": True}
    if path == CHAT:
        own = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": TOP}
    elif path == COMPLETIONS:
        own = {"prompt": "x", "logprobs": TOP}
    else:
        common = {"model": "tiny", "max_output_tokens": POSITIONS // 4}
        own = {"input": "x", "top_logprobs": TOP, "include": ["message.output_text.logprobs"]}
    return {**common, **own, **fields}


class Head(msgspec.Struct):
    """What is decoded of a large answer, to see that it is JSON."""

    id: str


class Probe:
    """Looks at a gateway from within its event loop, as often as it is let.

    Attributes:
        longest_turn_s: Most processor time that the loop's thread took between two looks.
        most_held: Most bytes of the budget that were held.
    """

    def __init__(self, server: Any) -> None:
        self.longest_turn_s = 0.0
        self.most_held = 0
        self._budget = server.gateway.held

    @property
    def held(self) -> int:
        return int(self._budget.used)

    async def look(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.001)
            self.longest_turn_s = max(self.longest_turn_s, time.thread_time() - before)
            self.most_held = max(self.most_held, self.held)


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Positions that have been made JSON, call by call."""
    counts: list[int] = []

    def count(name: str) -> None:
        encode = getattr(LogprobsEncoder, name)

        def counting(self: LogprobsEncoder, positions: Any, top: int) -> Any:
            counts.append(len(positions))
            return encode(self, positions, top)

        monkeypatch.setattr(LogprobsEncoder, name, counting)

    count("chat")
    count("completion")
    return counts


@pytest.fixture
def probed(serve: Any, wait_for: WaitFor) -> Any:
    """Serves a gateway whose engine writes all that was asked for at once, and looks at it."""

    @contextmanager
    def make(**gateway: Any) -> Iterator[tuple[Any, Probe]]:
        def prepare(server: Any) -> None:
            server.widen(100_000)
            server.chat.answer = lambda request, index: [97] * request.sampling.max_tokens
            server.chat.tokens_per_step = POSITIONS

        with serve(prepare, drain_timeout_s=0.5, **gateway) as server:
            probe = Probe(server)
            looking = asyncio.run_coroutine_threadsafe(probe.look(), server.loop)
            yield server, probe
            wait_for(lambda: probe.held == 0, "all memory to be given back")
            looking.cancel()

    return make


def post(server: Any, path: str, body: dict[str, Any]) -> Any:
    """Send a request from a client that reads next to nothing by itself."""
    raw = server.connect(receive_buffer=4096)
    raw.sendall(post_of(path, body))
    return raw


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_slow_readers_hold_up_nobody_before_or_after_they_are_cut(probed, wait_for, converted, path):
    with probed(write_timeout_s=6) as (server, probe), ExitStack() as opened:
        for _ in range(6):
            opened.enter_context(post(server, path, body_of(path, stream=True)))
        wait_for(lambda: len(server.chat.submitted) == 6, "all streams to begin")
        with server.client() as client:
            assert client.get("/health").status_code == 200
        wait_for(lambda: probe.held > 6 * POSITIONS * TOP * 16 * 0.9, "what nobody reads to be counted")
        wait_for(lambda: len(server.chat.aborted) == 6, "all of them to be cut", seconds=60)
        at_the_cut = sum(converted)
        wait_for(lambda: probe.held == 0, "their memory to be given back")
        with server.client() as client:
            assert client.get("/health").status_code == 200
    assert probe.longest_turn_s < 10, "it was forty seconds"
    assert sum(converted) == at_the_cut <= 6 * POSITIONS / 20, "what nobody reads is not converted"
    assert max(converted, default=0) <= 64
    assert server.chat.finished == []


@pytest.mark.parametrize("path", [CHAT, thorough(COMPLETIONS), RESPONSES])
def test_a_large_plain_answer_holds_up_nobody_and_is_counted_until_it_is_read(probed, converted, path):
    positions = POSITIONS if path != RESPONSES else POSITIONS // 4
    body = body_of(path, **({"store": False} if path == RESPONSES else {}))
    with probed() as (server, probe), httpx.Client(base_url=server.url, timeout=120) as client:
        with client.stream("POST", path, json=body) as answer:
            assert answer.status_code == 200
            size = int(answer.headers["content-length"])
            assert probe.held >= size, "it is held while it is not read"
            parts = list(answer.iter_raw())
        whole = b"".join(parts)
        assert len(whole) == size > positions * TOP * 10
        marker = b'"bytes":' if path != COMPLETIONS else b'{"'
        assert whole.count(marker) >= positions
        msgspec.json.decode(whole, type=Head)
    assert probe.longest_turn_s < 1, "it was two seconds"
    assert probe.most_held > size
    assert sum(converted) == positions and max(converted) <= 64


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_a_stream_that_holds_too_much_unread_ends_with_a_typed_error(probed, wait_for, path):
    with probed(max_held_bytes=4 * MIB) as (server, probe):
        server.chat.tokens_per_step, server.chat.step_s = 10 if path != RESPONSES else 300, 0.01
        with post(server, path, body_of(path, stream=True)) as raw:
            wait_for(lambda: probe.most_held > 2 * MIB, "what nobody reads to be counted")
            wait_for(lambda: probe.held < 2 * MIB, "what nobody reads to be dropped")
            assert not server.chat.aborted, "the client has read nothing yet"
            answer = b""
            while not answer.endswith(b"0\r\n\r\n") and (part := raw.recv(MIB)):
                answer += part
        typed = b"request_too_large" if path != RESPONSES else b"event: response.failed"
        assert typed in answer and b"gateway.max_held_bytes" in answer and b"[DONE]" not in answer
        wait_for(lambda: len(server.chat.aborted) == 1, "the engine to be told")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_a_plain_answer_for_which_there_is_no_memory_is_refused(probed, path):
    with probed(max_held_bytes=4 * MIB) as (server, _), server.client() as client:
        server.chat.tokens_per_step = 10  # it comes little by little, and is taken as it comes
        answer = client.post(path, json=body_of(path))
        assert answer.status_code == 413 and answer.json()["error"]["code"] == "request_too_large"
        assert "gateway.max_held_bytes" in answer.json()["error"]["message"]
        assert len(server.chat.aborted) == 1
        assert client.post(CHAT, json=body_of(CHAT, n=1, max_tokens=5)).status_code == 200


@pytest.mark.parametrize("path", [CHAT, thorough(COMPLETIONS), RESPONSES])
def test_a_plain_answer_that_could_not_be_encoded_ends_while_it_is_gathered(probed, converted, path):
    fields = {"max_output_tokens": 4 * TOKENS} if path == RESPONSES else {"n": 1, "max_tokens": 4 * TOKENS}
    with probed() as (server, _), server.client() as client:
        server.chat.tokens_per_step, server.chat.step_s = 50, 0.01
        size = len(client.post(path, json=body_of(path, **fields)).content)
    already = len(converted)
    with probed(max_held_bytes=int(2.3 * size)) as (server, _), server.client() as client:
        server.chat.tokens_per_step, server.chat.step_s = 50, 0.01
        answer = client.post(path, json=body_of(path, **fields))
        assert answer.status_code == 413 and answer.json()["error"]["code"] == "request_too_large"
    assert sum(converted[already:]) < 4 * TOKENS


def test_an_answer_is_refused_where_others_of_its_organisation_hold_too_much(probed, wait_for):
    with probed(max_held_bytes=64 * MIB) as (server, probe), server.client() as client:
        slow = post(server, CHAT, body_of(CHAT, stream=True))
        wait_for(lambda: probe.held > POSITIONS * TOP * 16 * 0.9, "what nobody reads to be counted")
        answer = client.post(CHAT, json=body_of(CHAT, n=8))
        assert answer.status_code == 429 and answer.json()["error"]["code"] == "over_share"
        assert answer.headers["retry-after"]
        slow.close()
        wait_for(lambda: probe.held == 0, "its memory to be given back")
        assert client.post(CHAT, json=body_of(CHAT, n=8)).status_code == 200


def test_a_large_answer_is_not_stored_and_says_so(probed):
    with probed(max_body_bytes=MIB) as (server, _), server.client() as client:
        small = client.post(CHAT, json=body_of(CHAT, n=1, max_tokens=10, store=True)).json()
        kept = client.get(f"{CHAT}/{small['id']}").json()
        assert kept["choices"] == small["choices"]
        large = client.post(CHAT, json=body_of(CHAT, n=1, store=True)).json()
        assert "max_body_bytes" in large["warnings"][0]
        assert client.get(f"{CHAT}/{large['id']}").status_code == 404


def test_a_response_keeps_its_logprobs_as_it_sent_them(probed):
    with probed() as (server, _), server.client() as client:
        body = body_of(RESPONSES, max_output_tokens=100, stream=True)
        text = client.post(RESPONSES, json=body).text
        last = json.loads(text.rpartition("data: ")[2])["response"]
        kept = client.get(f"{RESPONSES}/{last['id']}", params={"include": ["message.output_text.logprobs"]}).json()
        assert len(last["output"][0]["content"][0]["logprobs"]) == 100
        assert kept["output"] == last["output"]


def test_a_line_of_a_batch_has_the_logprobs_of_a_plain_answer(runner, wait_for):
    asked = {"logprobs": True, "top_logprobs": 2, "max_tokens": 4}
    with runner.client() as client:
        batch = await_end(client, send(client, [chat_line(1, **asked)]), wait_for)
        (line,) = outputs(client, batch).values()
        request = chat_line(1, **asked)["body"]
        plain = client.post(CHAT, json=request).json()
    assert line["response"]["body"]["choices"] == plain["choices"]
    assert len(plain["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 2


def test_a_plain_answer_is_not_finished_for_a_client_that_left(probed, wait_for, converted):
    for _ in range(10):  # on a busy machine the answer may be finished before this client has left
        converted.clear()
        with probed() as (server, _):
            raw = post(server, CHAT, body_of(CHAT))
            wait_for(lambda: sum(converted) > 0, "the answer to begin")
            raw.close()
            wait_for(
                lambda server=server: server.chat.aborted or sum(converted) >= POSITIONS,
                "the request to be given up",
            )
            at_the_end = sum(converted)
        assert sum(converted) == at_the_end
        if at_the_end < POSITIONS:
            return
    pytest.fail("each answer was finished")
