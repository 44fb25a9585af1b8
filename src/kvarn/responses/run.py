"""A response while it is written: its turns' deltas and its tools' calls, in the form of `/v1/responses`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from kvarn.answers.chat.answer import ChatRun
from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.errors import shutting_down
from kvarn.responses.ending import ResponseEnding
from kvarn.responses.events import EventEncoder
from kvarn.responses.hosted import approval_item, ended_fields
from kvarn.responses.shown import shown_response
from kvarn.responses.writer import ResponseWriter
from kvarn.text.logprobs import encoded_bytes
from kvarn.tools.items import begun_item
from kvarn.tools.loop import ApprovalAsked, CallBegun, CallEnded, LoopStep, ToolLoop
from kvarn.wire.openai.chat.answer import FinishReason
from kvarn.wire.openai.errors import unavailable
from kvarn.wire.openai.responses.answer import Response, StreamEvent
from kvarn.wire.openai.responses.items import StoredItem
from kvarn.wire.openai.responses.request import Include
from kvarn.wire.openai.usage import Usage


@dataclass(slots=True)
class ResponseRun:
    """A response that has been taken. Take `collect`, `stream` or `events` to its end."""

    chat: ChatRun
    """Its first turn."""
    steps: AsyncGenerator[LoopStep, None]
    ending: ResponseEnding
    now: Callable[[], float]
    loop: ToolLoop | None = None
    """Its turns, where tools run here."""
    opened: Sequence[StoredItem] = ()
    """Items that come first: what opening its tools gave."""
    include: Sequence[Include] = ()
    encoder: EventEncoder = field(default_factory=EventEncoder)

    @classmethod
    def of_chat(cls, chat: ChatRun, ending: ResponseEnding, now: Callable[[], float]) -> ResponseRun:
        """A response of one turn."""
        return cls(chat, _steps_of(chat), ending, now)

    @property
    def writer(self) -> ResponseWriter:
        return self.ending.writer

    @property
    def usage(self) -> Usage:
        return self.chat.turn.usage.as_openai() if self.loop is None else self.loop.usage

    async def collect(self) -> Response:
        """The response as one object. Where it breaks off nothing is kept: the client knows no name for it."""
        try:
            async with aclosing(self.events()) as batches:
                async for _ in batches:
                    pass
        finally:
            await self.ending.drop()
        response = self.writer.response
        if response.error is not None:
            raise unavailable(response.error.message, "conversation_not_kept")
        return shown_response(response, self.include)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Its events, encoded as they come; raises as `collect` does before the first of them.

        Afterwards a failure is sent as the last event. Where the client stops listening before the end the response is
        cancelled; where the server stops it has failed, and `error_event` has its last events.
        """
        self.encoder = EventEncoder(self.include)
        try:
            async with aclosing(self.events()) as batches:
                async for batch in batches:
                    if batch:
                        yield self.encoder.encode(batch)
        except Exception as error:
            if not self.writer.begun:
                raise
            await self.ending.fail(error)
            yield self.encoder.encode(self.ending.take_last_events())
        finally:  # does nothing where the response has ended
            if not self.writer.begun:
                await self.ending.drop()
            elif self.chat.turn.record.reply.disconnected:
                await self.ending.cancel()
            else:
                await self.ending.fail(shutting_down())

    def error_event(self, error: Exception) -> bytes:
        return self.encoder.encode(self.ending.take_last_events()) + self.encoder.error_event(error)

    async def events(self) -> AsyncGenerator[list[StreamEvent], None]:
        """The events while it is written, up to its end. Closing this generator ends the response."""
        writer = self.writer
        finish_reason: FinishReason = "stop"
        async with aclosing(self.steps) as steps:
            async for step in steps:
                if not writer.begun:  # not before: until then the engine may refuse it
                    yield writer.begin() + [event for item in self.opened for event in writer.add_hosted(item)]
                if isinstance(step, ChoiceDelta):
                    self.chat.held.take(encoded_bytes(step.logprobs or ()))
                    finish_reason = step.finish_reason or finish_reason
                    batch = writer.take(step)
                else:
                    batch = self._take_step(step)
                if batch:
                    yield batch
        await self.ending.finish(finish_reason, int(self.now()))
        yield self.ending.take_last_events()

    def _take_step(self, step: CallBegun | CallEnded | ApprovalAsked) -> list[StreamEvent]:
        if isinstance(step, CallBegun):
            return self.writer.begin_call(begun_item(step))
        if isinstance(step, ApprovalAsked):
            return self.writer.add_hosted(approval_item(step))
        assert self.loop is not None
        return self.writer.end_call(ended_fields(step, self.writer.response.id, self.loop.quotations))


async def _steps_of(chat: ChatRun) -> AsyncGenerator[LoopStep, None]:
    async with aclosing(chat.deltas) as deltas:
        async for delta in deltas:
            yield delta
