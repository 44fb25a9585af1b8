"""The deltas of an answer: one prompt's way through the engine, or those of several prompts at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from kvarn.observe.metrics import GatewayMetrics
from kvarn.replica.client.protocol import ReplicaLostError, RequestRefusedError
from kvarn.serving.choice import Choice, ChoiceDelta
from kvarn.serving.held_bytes import HeldBytes
from kvarn.serving.models import ReadyModel
from kvarn.serving.moderation.output_watch import OutputWatch
from kvarn.serving.pipeline import TokenUsage
from kvarn.wire.messages import Submit
from kvarn.wire.openai.errors import ApiError

Transform = Callable[[ChoiceDelta], None]
"""Adds to the deltas of one choice what its endpoint needs; may end the choice by setting its finish reason."""


class Generation:
    """One prompt's way through the engine.

    Args:
        model: Where it runs.
        submit: What is sent to the engine.
        choices: One for each of `submit.sampling.n`, in order.
        usage: Where its tokens are counted.
        held: Counts what the engine has written and nobody has read yet.
        watches: The moderation of each choice; empty where answers are not moderated.
        transforms: One for each choice, or none at all.
    """

    def __init__(
        self,
        model: ReadyModel,
        submit: Submit,
        choices: Sequence[Choice],
        usage: TokenUsage,
        held: HeldBytes,
        watches: Sequence[OutputWatch] = (),
        transforms: Sequence[Transform] = (),
    ) -> None:
        self._model = model
        self._submit = submit
        self._choices = choices
        self._usage = usage
        self._held = held
        self._watches = watches
        self._transforms = transforms
        usage.pending += 1

    async def deltas(self, metrics: GatewayMetrics, received: float) -> AsyncGenerator[ChoiceDelta, None]:
        """Run it; yields what each step adds to a choice.

        A choice ends with a stop string, by its transform or by moderation, whatever the engine still sends for it;
        when all have ended, the request is aborted by closing the replica's generator.

        Raises:
            RequestRefusedError: The engine refused or gave up the request.
            ReplicaLostError: The engine is not ready, died or fell silent.
            ApiError: The answer cannot be moderated now, or there is no memory left for what nobody has read.
        """
        observer = metrics.generation(self._model.name, received)
        usage, running = self._usage, len(self._choices)
        usage.count(prompt=len(self._submit.prompt_token_ids))
        try:
            async with aclosing(self._model.replica.generate(self._submit, self._held.become)) as new_tokens:
                async for new in new_tokens:
                    choice = self._choices[new.index]
                    if choice.ended:
                        continue
                    if new.token_ids:
                        observer.delta(new.index, len(new.token_ids))
                    delta = choice.add(new)
                    usage.count(cached=new.cached_tokens, completion=len(delta.token_ids))
                    if self._watches:
                        shown = await self._watches[new.index].look(delta)
                        if shown is None:
                            continue
                        delta = shown
                    if self._transforms:
                        self._transforms[new.index](delta)
                    if delta.finish_reason is not None:
                        choice.ended = True
                        running -= 1
                        if not running:  # counted before the client hears of it
                            usage.pending -= 1
                            observer.finished()
                    yield delta
                    if not running:
                        return
        except (RequestRefusedError, ReplicaLostError, ApiError) as error:
            usage.failed = True
            usage.refused = usage.refused or isinstance(error, RequestRefusedError)
            observer.failed()
            raise


async def interleave(streams: Sequence[AsyncGenerator[ChoiceDelta, None]]) -> AsyncGenerator[ChoiceDelta, None]:
    """The deltas of several streams as they come; the first error ends all of them, as closing does.

    Each stream runs at most one delta ahead, so a slow reader slows all of them down.
    """
    queue: asyncio.Queue[ChoiceDelta | Exception | None] = asyncio.Queue(maxsize=1)
    tasks = [asyncio.create_task(_forward(stream, queue)) for stream in streams]
    running = len(tasks)
    try:
        while running:
            item = await queue.get()
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


async def _forward(
    stream: AsyncGenerator[ChoiceDelta, None], queue: asyncio.Queue[ChoiceDelta | Exception | None]
) -> None:
    async with aclosing(stream):
        try:
            async for delta in stream:
                await queue.put(delta)
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)
