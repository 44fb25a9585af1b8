"""Time-outs of an answer's stages, joined to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.external import TimeoutsConfig
from kvarn.routing.timeouts import StageTimeouts, TimeoutStage

ItemT = TypeVar("ItemT")

_WORDS = {
    TimeoutStage.CONNECT: "The connection to the model's server took longer than {seconds:g} s.",
    TimeoutStage.FIRST_TOKEN: "The first token took longer than {seconds:g} s.",
    TimeoutStage.BETWEEN_TOKENS: "A token took longer than {seconds:g} s.",
    TimeoutStage.TOTAL: "The answer took longer than {seconds:g} s.",
}
EXTERNAL_TIMEOUTS = StageTimeouts(connect_s=5.0, first_token_s=120.0, between_tokens_s=60.0)
"""Time-outs of external models where the configuration does not say."""

NO_TIMEOUTS = StageTimeouts()


class StageTimeoutError(Exception):
    """A stage of an answer took too long."""

    def __init__(self, stage: TimeoutStage, seconds: float) -> None:
        super().__init__(_WORDS[stage].format(seconds=seconds))
        self.stage = stage


def timeouts_of(config: TimeoutsConfig, *, external: bool) -> StageTimeouts:
    default = EXTERNAL_TIMEOUTS if external else NO_TIMEOUTS
    return StageTimeouts(
        connect_s=config.connect_s or default.connect_s,
        first_token_s=config.first_token_s or default.first_token_s,
        between_tokens_s=config.between_tokens_s or default.between_tokens_s,
        total_s=config.total_s or default.total_s,
    )


class StageTimer:
    """Bounds the waits of one answer: to its first part, between its parts, and in all."""

    def __init__(self, timeouts: StageTimeouts) -> None:
        self.begun = False
        self._timeouts = timeouts
        self._began = SYSTEM_CLOCK.now()

    async def wait(self, awaited: Awaitable[ItemT]) -> ItemT:
        """Await something of the answer. Raises `StageTimeoutError`."""
        deadline = self._timeouts.deadline(self._began, SYSTEM_CLOCK.now(), begun=self.begun)
        try:
            async with asyncio.timeout_at(None if deadline is None else deadline[0]) as limit:
                return await awaited
        except TimeoutError:
            if deadline is None or not limit.expired():
                raise  # of what is awaited, not of this limit
            raise StageTimeoutError(deadline[1], self._timeouts.seconds(deadline[1]) or 0.0) from None


async def within_timeouts(
    items: AsyncGenerator[ItemT, None], timeouts: StageTimeouts, is_token: Callable[[ItemT], bool]
) -> AsyncGenerator[ItemT, None]:
    """The items as they come; `is_token` says which of them are part of the answer. Raises `StageTimeoutError`; `items`
    is closed then."""
    timer = StageTimer(timeouts)
    async with aclosing(items):
        while True:
            try:
                item = await timer.wait(anext(items))
            except StopAsyncIteration:
                return
            timer.begun = timer.begun or is_token(item)
            yield item
