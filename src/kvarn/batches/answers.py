"""Answers on their way into the database: they have been paid for, so none is dropped while it is away."""

from __future__ import annotations

import asyncio
import logging

from kvarn.batches.hold import Hold
from kvarn.observe.metrics import GatewayMetrics
from kvarn.store.errors import StoreAwayError
from kvarn.store.repositories.batches.lines import Answer, answer_lines

_TRY_AGAIN_S = 1.0

_log = logging.getLogger("kvarn.gateway")


class Answers:
    """Keeps the answers of a batch.

    Args:
        hold: The batch.
        metrics: Where they are counted once they are kept.
    """

    def __init__(self, hold: Hold, metrics: GatewayMetrics) -> None:
        self._hold = hold
        self._metrics = metrics
        self._unkept: list[Answer] = []

    def add(self, answer: Answer) -> None:
        """Take an answer, to be kept with the next ones."""
        self._unkept.append(answer)

    async def keep(self) -> None:
        """Write what was added.

        Raises:
            LeaseLostError: Another gateway has the batch.
            StoreAwayError: The database does not answer.
        """
        if not self._unkept:
            return
        answers = list(self._unkept)
        await answer_lines(self._hold.store, self._hold.holder, self._hold.batch.id, answers)
        del self._unkept[: len(answers)]
        for answer in answers:
            self._metrics.batch_lines.labels("failed" if answer.failed else "completed").inc()

    async def keep_trying(self) -> None:
        """Write what was added, as soon as the database answers; give that up only where the hold is stopped.

        Raises:
            LeaseLostError: Another gateway has the batch.
        """
        while self._unkept and not self._hold.stopped.is_set():
            try:
                await self.keep()
            except StoreAwayError as error:
                _log.warning("batch %s: answers wait for the database: %s", self._hold.batch.id, error)
                await asyncio.sleep(_TRY_AGAIN_S)
