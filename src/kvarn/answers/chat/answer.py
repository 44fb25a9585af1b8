"""The answer of a chat: encoded delta by delta as a stream, or gathered into one object."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.held_bytes import HeldBytes
from kvarn.answers.turn import Deltas, Turn
from kvarn.catalog.models import ReadyModel
from kvarn.text.logprobs import encoded_bytes
from kvarn.wire.messages import PositionLogprobs
from kvarn.wire.openai.chat.answer import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChoiceLogprobs,
    ChunkChoice,
    Delta,
    FinishReason,
    FunctionCall,
    TokenLogprobs,
    ToolCall,
    ToolCallDelta,
)
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.usage import Usage
from kvarn.wire.sse import EncodedStream, TextEvents, event

StoreAnswer = Callable[[ChatCompletion], Awaitable[list[str]]]


@dataclass(frozen=True, slots=True)
class ChatRun:
    """A chat whose turn has begun; nothing is sent to the engine yet. Read `deltas`, or let `stream` or `collect` do
    it."""

    id: str
    created: int
    request: ChatCompletionRequest
    model: ReadyModel
    fingerprint: str
    prompt: list[int]
    deltas: Deltas
    choices: int
    turn: Turn
    service_tier: str | UnsetType  # the tier it is served in, where the client named one
    opening: str  # text that each choice begins with
    legacy: bool  # the client speaks of functions, not of tools
    held: HeldBytes  # counts what of the answer is gathered before it is sent
    store: StoreAnswer | None = None  # stores the answer; None: the client did not ask for that
    usage: Callable[[], Usage] | None = None  # tokens of all its turns; None: it has one

    def stream(self) -> EncodedStream[ChoiceDelta]:
        """The answer as server-sent events. Each choice begins with its role and ends with its finish reason; where
        usage is asked for, it comes last of all, in a chunk without choices."""
        encoders = [_ChunkEncoder(self, index) for index in range(self.choices)]
        deltas = self.deltas if self.store is None else self._stored(self.store)
        last = self._usage_event if self.request.include_usage else bytes
        if len(encoders) == 1:
            return EncodedStream(deltas, encoders[0].encode, last)
        return EncodedStream(deltas, lambda delta: encoders[delta.index].encode(delta), last)

    async def _stored(self, store: StoreAnswer) -> Deltas:
        """The deltas; the answer is stored before the client hears of its end."""
        collectors, running = self._collectors(), self.choices
        async with aclosing(self.deltas) as deltas:
            async for delta in deltas:
                running -= delta.finish_reason is not None
                collectors[delta.index].add(delta)
                if not running:
                    delta.warnings += await store(self._completion(collectors))
                yield delta

    def _usage_event(self) -> bytes:
        return event(self.chunk([], self.used()))

    def used(self) -> Usage:
        return self.turn.usage.as_openai() if self.usage is None else self.usage()

    async def collect(self) -> ChatCompletion:
        collectors = self._collectors()
        prompt_positions: list[PositionLogprobs | None] | None = None
        async with aclosing(self.deltas) as deltas:
            async for delta in deltas:
                collectors[delta.index].add(delta)
                prompt_positions = delta.prompt_positions or prompt_positions
        answer = self._completion(collectors)
        if prompt_positions is not None:
            prompt_logprobs = await self.model.text.logprobs.prompt(prompt_positions)
            self.held.take(encoded_bytes(prompt_logprobs))
            answer = msgspec.structs.replace(answer, prompt_logprobs=prompt_logprobs)
        warnings = [] if self.store is None else await self.store(answer)
        return msgspec.structs.replace(answer, warnings=[*(answer.warnings or ()), *warnings]) if warnings else answer

    def chunk(
        self, choices: list[ChunkChoice], usage: Usage | None = None, warnings: list[str] | None = None
    ) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self.id,
            created=self.created,
            model=self.model.public_name,
            system_fingerprint=self.fingerprint,
            choices=choices,
            service_tier=self.service_tier,
            usage=usage if self.request.include_usage else UNSET,
            warnings=warnings or UNSET,
        )

    def _collectors(self) -> list[_Collector]:
        return [_Collector(self, index, [self.opening]) for index in range(self.choices)]

    def _completion(self, collectors: list[_Collector]) -> ChatCompletion:
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model.public_name,
            system_fingerprint=self.fingerprint,
            choices=[collector.choice() for collector in collectors],
            usage=self.used(),
            service_tier=self.service_tier,
            metadata=self.request.metadata or UNSET,
            prompt_token_ids=self.prompt if self.request.return_token_ids else UNSET,
            warnings=[warning for collector in collectors for warning in collector.warnings] or UNSET,
        )


class _ChunkEncoder:
    def __init__(self, run: ChatRun, index: int) -> None:
        self._run = run
        self._index = index
        self._legacy = run.legacy
        self._with_token_ids = run.request.return_token_ids
        self._opening = self._event(Delta(role="assistant", content=run.opening))  # sent before the first delta
        self._texts = TextEvents(lambda text: run.chunk([ChunkChoice(index=index, delta=Delta(content=text))]))

    def encode(self, delta: ChoiceDelta) -> bytes:
        """The next delta; empty where it has nothing to send."""
        opening, self._opening = self._opening, b""
        only_text = delta.finish_reason is None and not delta.logprobs and not self._with_token_ids
        only_text = only_text and delta.executions is None
        if only_text and (delta.parts is None or all(isinstance(part, str) for part in delta.parts)):
            return opening + self._texts.event(delta.text) if delta.text else opening
        return opening + (self._legacy_events(delta) if self._legacy else self._chunk(delta, delta.text))

    def _chunk(self, delta: ChoiceDelta, text: str) -> bytes:
        calls = delta.tool_calls if delta.parts and not self._legacy else []
        reasoning = (delta.reasoning if delta.parts else "") or UNSET
        choice = ChunkChoice(
            index=self._index,
            delta=Delta(
                reasoning=reasoning,
                reasoning_content=reasoning,
                content=text or UNSET,
                refusal=delta.refusal or UNSET,
                tool_calls=calls or UNSET,
                annotations=delta.annotations or UNSET,
                tool_executions=delta.executions or UNSET,
            ),
            finish_reason=delta.finish_reason,
            logprobs=None if delta.logprobs is None else ChoiceLogprobs(content=delta.logprobs),
            stop_reason=UNSET if delta.finish_reason is None else delta.stop_reason,
            token_ids=delta.token_ids if self._with_token_ids else UNSET,
        )
        return event(self._run.chunk([choice], warnings=delta.warnings))

    def _legacy_events(self, delta: ChoiceDelta) -> bytes:
        """A function call has no list to stand in: a chunk carries one piece of it, or of the text around it."""
        out, text = b"", ""
        for part in delta.parts or ():
            if not isinstance(part, ToolCallDelta):
                text += part if isinstance(part, str) else ""
                continue
            before = self._event(Delta(content=text)) if text else b""
            out += before + self._event(Delta(function_call=part.function))
            text = ""
        return out + self._chunk(delta, text)

    def _event(self, delta: Delta) -> bytes:
        return event(self._run.chunk([ChunkChoice(index=self._index, delta=delta)]))


@dataclass(slots=True)
class _Collector:
    """Gathers the deltas of one choice into a whole message."""

    run: ChatRun
    index: int
    text: list[str]
    reasoning: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs | Raw] | None = None
    token_ids: list[int] = field(default_factory=list)
    calls: list[tuple[str, str, list[str]]] = field(default_factory=list)  # id, name and arguments of each
    warnings: list[str] = field(default_factory=list)
    finish_reason: FinishReason = "stop"
    stop_reason: int | str | None = None
    refusal: str = ""
    executions: list[dict[str, Any]] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)

    def add(self, delta: ChoiceDelta) -> None:
        """Take the choice's next delta. The memory of its log-probabilities is counted (raises `BodyRefusedError`);
        text and token ids are small beside them."""
        self.text.append(delta.text)
        self.reasoning.append(delta.reasoning)
        if delta.logprobs is not None:
            self.run.held.take(encoded_bytes(delta.logprobs))
            self.logprobs = self.logprobs or []
            self.logprobs += delta.logprobs
        if self.run.request.return_token_ids:
            self.token_ids += delta.token_ids
        for call in delta.tool_calls:
            if isinstance(call.id, str) and isinstance(call.function.name, str):
                self.calls.append((call.id, call.function.name, []))
            if isinstance(call.function.arguments, str):
                self.calls[call.index][2].append(call.function.arguments)
        if delta.cut_call:
            self.calls.pop()
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
            self.refusal = delta.refusal
        self.warnings += delta.warnings
        self.executions += delta.executions or ()
        self.annotations += delta.annotations or ()

    def choice(self) -> ChatChoice:
        text, legacy = "".join(self.text), self.run.legacy
        reasoning = "".join(self.reasoning) or UNSET
        calls = [
            ToolCall(id=call_id, function=FunctionCall(name=name, arguments="".join(arguments)))
            for call_id, name, arguments in self.calls
        ]
        return ChatChoice(
            index=self.index,
            message=AnswerMessage(
                reasoning=reasoning,
                reasoning_content=reasoning,
                content=None if (calls or reasoning) and not text else text,
                refusal=self.refusal or None,
                tool_calls=calls if calls and not legacy else UNSET,
                function_call=calls[0].function if calls and legacy else UNSET,
                annotations=self.annotations or UNSET,
                tool_executions=self.executions or UNSET,
            ),
            finish_reason=self.finish_reason,
            logprobs=None if self.logprobs is None else ChoiceLogprobs(content=self.logprobs),
            stop_reason=self.stop_reason,
            token_ids=self.token_ids if self.run.request.return_token_ids else UNSET,
        )
