"""From a replica's deltas to pieces of text: one request to the engine, or several at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from kvarn.observe.metrics import GatewayMetrics, GenerationObserver
from kvarn.replica.client.protocol import ReplicaLostError, RequestRefusedError
from kvarn.serving.choice import Choice, Piece
from kvarn.serving.held_bytes import HeldBytes
from kvarn.serving.models import ReadyModel
from kvarn.serving.moderation.output_watch import OutputWatch
from kvarn.serving.pipeline import TokenUsage
from kvarn.wire.messages import Submit
from kvarn.wire.openai.errors import ApiError


class Generation:
    """One prompt's way through the engine.

    Args:
        model: Where it runs.
        submit: What the engine is asked for.
        choices: One for each of `submit.sampling.n`, in order.
        usage: Where its tokens are counted.
        held: Counts what the engine has written and nobody has read yet.
        watches: Who looks at what each choice says before it is shown; empty where nobody does.
    """

    def __init__(
        self,
        model: ReadyModel,
        submit: Submit,
        choices: Sequence[Choice],
        usage: TokenUsage,
        held: HeldBytes,
        watches: Sequence[OutputWatch] = (),
    ) -> None:
        self._model = model
        self._submit = submit
        self._choices = choices
        self._usage = usage
        self._held = held
        self._open = len(choices)
        self._observer: GenerationObserver | None = None
        self._watches = watches
        usage.pending += 1
        for choice in choices:
            choice.on_end = self._choice_over

    async def pieces(self, metrics: GatewayMetrics, received: float) -> AsyncGenerator[Piece, None]:
        """Run it; yields what each delta adds to a choice.

        A choice that met a stop string, that its reader has ended or that was flagged is over, whatever the engine
        still sends for it; when all are, the request is aborted by closing the replica's generator.

        Raises:
            RequestRefusedError: The engine refused or gave up the request.
            ReplicaLostError: The engine is not ready, died or fell silent.
            ApiError: The answer cannot be moderated now, or there is no memory left for what nobody has read.
        """
        self._observer = observer = metrics.generation(self._model.name, received)
        usage, choices = self._usage, self._choices
        usage.count(prompt=len(self._submit.prompt_token_ids))
        try:
            async with aclosing(self._model.replica.generate(self._submit, self._held.become)) as deltas:
                async for delta in deltas:
                    choice = choices[delta.index]
                    if choice.ended:
                        continue
                    if delta.token_ids:
                        observer.delta(delta.index, len(delta.token_ids))
                    before = choice.num_tokens
                    piece = choice.add(delta)
                    usage.count(cached=delta.cached_tokens, completion=choice.num_tokens - before)
                    shown = await self._watched(choice, delta.index, piece) if self._watches else piece
                    if choice.ended:
                        self._choice_over()
                    if shown is not None:
                        yield shown
                    if not self._open:
                        return
        except (RequestRefusedError, ReplicaLostError, ApiError) as error:
            usage.failed = True
            usage.refused = usage.refused or isinstance(error, RequestRefusedError)
            observer.failed()
            raise

    def _choice_over(self) -> None:
        """One choice is complete: known before the client hears of it, whoever ended it."""
        self._open -= 1
        if not self._open:
            self._usage.pending -= 1
            if self._observer is not None:
                self._observer.finished()

    async def _watched(self, choice: Choice, position: int, piece: Piece) -> Piece | None:
        shown = await self._watches[position].look(piece)
        if shown is not None and shown.finish_reason == "content_filter":
            choice.ended = True
        return shown


async def interleave(streams: Sequence[AsyncGenerator[Piece, None]]) -> AsyncGenerator[Piece, None]:
    """The pieces of several streams as they come; the first error ends all of them, as closing does.

    Each stream runs at most one piece ahead, so a slow reader is felt by all of them.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for piece in only:
                yield piece
        return
    meeting: asyncio.Queue[Piece | Exception | None] = asyncio.Queue(maxsize=1)
    tasks = [asyncio.create_task(_forward(stream, meeting)) for stream in streams]
    try:
        running = len(tasks)
        while running:
            item = await meeting.get()
            if item is None:
                running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(stream: AsyncGenerator[Piece, None], meeting: asyncio.Queue[Piece | Exception | None]) -> None:
    async with aclosing(stream):
        try:
            async for piece in stream:
                await meeting.put(piece)
        except Exception as error:
            await meeting.put(error)
        else:
            await meeting.put(None)
