"""The replica's parts that need no process."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest
import zmq

from kvarn.config.engine import EngineConfig
from kvarn.fleet.launch.process_exit import describe_exit
from kvarn.replica.client.request_stream import RequestStream
from kvarn.replica.server.embed import EmbedService
from kvarn.replica.transport import SUPERVISOR_LINGER_MS, Outbox
from kvarn.wire.messages import (
    Embed,
    Embedded,
    FinishReason,
    FromEngine,
    ModelCard,
    PositionLogprobs,
    RefusalReason,
    Refused,
    TokenDelta,
    TokenLogprob,
)
from kvarn.wire.supervision import Failed


def logprob(token: int) -> PositionLogprobs:
    return PositionLogprobs.of(TokenLogprob(token, -1.0, 1), [])


async def test_what_is_not_taken_is_merged_per_choice():
    stream = RequestStream(range(2))
    stream.put(TokenDelta(request_id="r", token_ids=[1], logprobs=[logprob(1)], cached_tokens=16, events=[9, 500]))
    stream.put(TokenDelta(request_id="r", index=1, token_ids=[7]))
    stream.put(TokenDelta(request_id="r", token_ids=[2, 3], logprobs=[logprob(2), logprob(3)]))
    stream.put(TokenDelta(request_id="r", token_ids=[4], logprobs=[logprob(4)], finish_reason=FinishReason.STOP))
    first, second, last = await stream.take()
    assert first.token_ids == [1, 2, 3]
    assert [entry.chosen.token_id for entry in first.logprobs] == [1, 2, 3]
    assert (first.cached_tokens, first.events, first.finish_reason) == (16, [9, 500], None)
    assert (second.index, second.token_ids, second.logprobs, second.finish_reason) == (1, [7], None, None)
    assert (last.token_ids, last.finish_reason) == ([4], FinishReason.STOP)


async def test_what_has_gathered_comes_in_bounded_parts():
    stream = RequestStream(range(1))
    for token in range(1000):
        stream.put(TokenDelta(request_id="r", token_ids=[token]))
    parts = [[delta.token_ids for delta in await stream.take()] for _ in range(3)]
    assert [len(deltas) for deltas in parts] == [1, 1, 1] and parts[2][0] == list(range(128, 192))


async def test_a_stream_ends_when_every_choice_has_ended():
    stream = RequestStream(range(2))
    stream.put(TokenDelta(request_id="r", index=0, finish_reason=FinishReason.STOP))
    assert not stream.finished
    stream.put(TokenDelta(request_id="r", index=1, finish_reason=FinishReason.LENGTH))
    stream.put(TokenDelta(request_id="r", index=1, token_ids=[9]))
    assert stream.finished
    assert [delta.token_ids for delta in await stream.take()] == [[], []]
    assert await stream.take() == []


async def test_a_failed_stream_gives_what_it_has_before_the_error():
    stream = RequestStream(range(1))
    waiting = asyncio.create_task(stream.take())
    await asyncio.sleep(0)
    stream.put(TokenDelta(request_id="r", token_ids=[1]))
    stream.fail(RuntimeError("gone"))
    assert [delta.token_ids for delta in await waiting] == [[1]]
    with pytest.raises(RuntimeError, match="gone"):
        await stream.take()


class Recorder:
    def __init__(self) -> None:
        self.batches: list[list[list[int]]] = []

    def shutdown(self) -> None:
        pass

    def embed(self, inputs: list[list[int]]) -> list[bytes]:
        self.batches.append(inputs)
        return [bytes(tokens) for tokens in inputs]


@pytest.fixture
def embedder() -> tuple[EmbedService, Recorder]:
    recorder = Recorder()
    card = ModelCard(kind="embed", architecture="A", dtype="d", vocab_size=100, max_context_length=10, num_parameters=0)
    config = EngineConfig(token_budget=8, max_waiting_requests=3, max_waiting_tokens=60)
    return EmbedService(recorder, config, card), recorder


def test_a_short_request_does_not_wait_for_a_long_one(embedder):
    service, recorder = embedder
    assert service.accept(Embed(request_id="long", inputs=[[1] * 4] * 10)) is None
    assert service.accept(Embed(request_id="short", inputs=[[2] * 4])) is None
    outputs = service.step()
    assert [message.request_id for message in outputs if isinstance(message, Embedded)] == ["short"]
    while service.has_work():
        outputs = service.step()
    assert outputs[0] == Embedded(request_id="long", vectors=[bytes([1] * 4)] * 10)
    assert all(sum(len(tokens) for tokens in batch) <= 8 for batch in recorder.batches)


def test_an_input_longer_than_the_budget_runs_alone(embedder):
    service, recorder = embedder
    service.accept(Embed(request_id="a", inputs=[[1] * 10, [2]]))
    service.step()
    assert recorder.batches == [[[1] * 10]]


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ([], RefusalReason.INVALID),
        ([[]], RefusalReason.INVALID),
        ([[100]], RefusalReason.INVALID),
        ([[1] * 11], RefusalReason.PROMPT_TOO_LONG),
        ([[1] * 10] * 3, RefusalReason.QUEUE_FULL),
    ],
)
def test_embed_requests_that_cannot_be_taken_are_refused_with_a_reason(embedder, inputs, reason):
    service, _ = embedder
    service.accept(Embed(request_id="first", inputs=[[1] * 10] * 4))
    refused = service.accept(Embed(request_id="second", inputs=inputs))
    assert isinstance(refused, Refused) and refused.reason is reason
    assert service.stats().refused_total == {reason: 1}


def test_an_exit_is_described_by_its_signal():
    assert describe_exit(3) == "the engine process ended with status 3"
    assert "SIGSEGV" in describe_exit(-11)
    assert "out of memory" in describe_exit(-9)


def test_what_an_engine_says_before_it_ends_waits_for_a_gateway_that_listens_late(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/out"
    engine, gateway = zmq.Context(), zmq.Context()
    outbox = Outbox(engine, address, SUPERVISOR_LINGER_MS)
    outbox.send(Failed(message="no weights here"))
    outbox.close()
    ending = threading.Thread(target=engine.term)
    ending.start()
    receiver = gateway.socket(zmq.PULL)
    receiver.bind(address)
    assert receiver.poll(20_000)
    assert msgspec.msgpack.decode(receiver.recv(), type=FromEngine) == Failed(message="no weights here")
    ending.join(20)
    assert not ending.is_alive()
    receiver.close()
    gateway.term()
