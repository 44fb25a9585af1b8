"""A replica without an engine, for tests of what is above it: its answers are chosen, the rest is as in a real one."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from kvarn.replica.client.block_events import BlockWatcher
from kvarn.replica.client.protocol import (
    AdapterChangeError,
    ReplicaLostError,
    ReplicaState,
    ReportPending,
    RequestRefusedError,
)
from kvarn.replica.client.request_stream import RequestStream
from kvarn.wire.kv_map import KVMap, KVPath
from kvarn.wire.messages import AdapterInfo, EngineStats, FinishReason, ModelCard, Submit, TokenDelta
from kvarn.wire.questions import AnswerT, AskKVMap, AskKVPath, AskLiveSteps, AskTurnSteps, EngineQuestion
from kvarn.wire.sessions import SessionNews
from kvarn.wire.step_records import LiveSteps, TurnSteps

TOKENS_OF_A_DELTA = 64
"""At most: a step of an engine brings a choice one token, or a few."""


@dataclass(eq=False)
class FakeReplicaClient:
    """A `ReplicaClient` that answers with `answer(request, index)`, the token ids of a choice."""

    card: ModelCard | None
    answer: Callable[[Submit, int], list[int]]
    state: ReplicaState = ReplicaState.READY
    progress: tuple[str, float] = ("ready", 1.0)
    starts: int = 1
    stats: EngineStats = field(default_factory=EngineStats)
    tokens_per_step: int = 1
    step_s: float = 0.0
    cached_tokens: int = 0
    refusal: RequestRefusedError | None = None
    """Where set, requests are refused with it."""
    lose_after: int | None = None
    """Die once this many tokens of a choice are out."""
    hold: asyncio.Event | None = None
    """Where set, requests wait for it before their first token."""
    submitted: list[Submit] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    yields: int = 0
    adapters: dict[str, AdapterInfo] = field(default_factory=dict)
    adapter_problem: AdapterChangeError | None = None
    """Where set, adapters are not loaded."""
    embedded: list[list[list[int]]] = field(default_factory=list)
    session_news: list[SessionNews] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    watcher: BlockWatcher | None = None
    steps_of: dict[str, TurnSteps] = field(default_factory=dict)
    """Steps of turns, by their ids."""
    live_steps: LiveSteps | None = None
    """The state that it tells; of its steps those after the one that was asked for."""
    blocks: KVMap | None = None
    paths: dict[int, KVPath] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    """Steps after which others were asked for."""
    on_changed: Callable[[], None] = field(init=False)
    """A test that changes the state while somebody waits for that calls it in the server's loop."""

    async def generate(
        self, request: Submit, report_pending: ReportPending | None = None
    ) -> AsyncGenerator[TokenDelta, None]:
        """Stream the chosen answers."""
        self.submitted.append(request)
        self._check()
        self.running.add(request.request_id)
        stream = RequestStream(request.choices, report_pending)
        producer = asyncio.create_task(self._produce(request, stream))
        try:
            while deltas := await stream.take():
                for delta in deltas:
                    self.yields += 1
                    yield delta
            self.finished.append(request.request_id)
        finally:
            producer.cancel()
            stream.close()
            self.running.discard(request.request_id)
            if request.request_id not in self.finished:
                self.aborted.append(request.request_id)

    async def ask(self, question: EngineQuestion[AnswerT]) -> AnswerT | None:
        """What a test has put there."""
        return cast("AnswerT | None", self._found(question))

    def _found(self, question: EngineQuestion[Any]) -> object:
        match question:
            case AskTurnSteps():
                return self.steps_of.get(question.request_id)
            case AskKVMap():
                return self.blocks
            case AskKVPath():
                return self.paths.get(question.block)
        assert isinstance(question, AskLiveSteps)
        self.asked.append(question.after_step)
        if self.live_steps is None:
            return None
        steps = [step for step in self.live_steps.steps if step.number > question.after_step]
        return msgspec.structs.replace(self.live_steps, steps=steps)

    def watch_blocks(self, watcher: BlockWatcher | None) -> None:
        """Keep it: a test tells it what it likes."""
        self.watcher = watcher

    def tell_session(self, news: SessionNews) -> bool:
        self.session_news.append(news)
        return True

    def forget_tenant(self, tenant: str) -> bool:
        """Note it."""
        if self.state is ReplicaState.READY:
            self.forgotten.append(tenant)
        return self.state is ReplicaState.READY

    async def embed(self, request_id: str, inputs: list[list[int]]) -> list[bytes]:
        """Vectors made from the sums of the token ids."""
        self._check()
        self.embedded.append(inputs)
        await asyncio.sleep(self.step_s)
        assert self.card is not None
        size = self.card.embedding_size
        return [struct.pack(f"<{size}f", *[(sum(each) + i) / 1000 for i in range(size)]) for each in inputs]

    async def load_adapter(self, request_id: str, adapter: AdapterInfo, *, in_place: bool = False) -> None:
        """It is there at once."""
        self._check()
        if self.adapter_problem is not None:
            raise self.adapter_problem
        if adapter.name in self.adapters and not in_place:
            raise AdapterChangeError("exists", "it has already been loaded")
        self.adapters[adapter.name] = adapter

    async def unload_adapter(self, request_id: str, name: str) -> None:
        """It is gone at once."""
        self._check()
        del self.adapters[name]

    def _check(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        if self.state is not ReplicaState.READY:
            raise ReplicaLostError("not ready")

    async def _produce(self, request: Submit, stream: RequestStream) -> None:
        sampling = request.sampling
        if self.hold is not None:
            await self.hold.wait()
        answers = {index: self.answer(request, index)[: sampling.max_tokens] for index in request.choices}
        resumed = request.resume_token_ids
        sent = {index: len(resumed[index] or ()) if resumed else 0 for index in answers}
        while any(sent[index] < max(1, len(answer)) for index, answer in answers.items()):
            await asyncio.sleep(self.step_s)
            if self.lose_after is not None and max(sent.values()) >= self.lose_after:
                stream.fail(ReplicaLostError("the engine process died"))
                return
            for index, answer in answers.items():
                end = sent[index] + self.tokens_per_step
                for start in range(sent[index], min(end, max(1, len(answer))), TOKENS_OF_A_DELTA):
                    stop = min(end, start + TOKENS_OF_A_DELTA)
                    first, last = start == 0 and index == 0, stop >= len(answer)
                    if not stream.put(self.delta(request, index, answer[start:stop], first=first, last=last)):
                        return
                sent[index] = end

    def delta(self, request: Submit, index: int, token_ids: list[int], *, first: bool, last: bool) -> TokenDelta:
        """What a step adds to a choice; `first` is the request's first delta, `last` the choice's last."""
        stops = bool(token_ids) and token_ids[-1] in request.sampling.stop_token_ids
        reason = FinishReason.STOP if stops else FinishReason.LENGTH if last else None
        cached = self.cached_tokens if first else 0
        return TokenDelta(
            request_id=request.request_id, index=index, token_ids=token_ids, finish_reason=reason, cached_tokens=cached
        )
