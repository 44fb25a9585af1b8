"""The lines of a batch that is in progress: as many at once as there is room for, each until it has an answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvarn.config.platform import BatchesConfig
from kvarn.gateway.batches.answers import Answers
from kvarn.gateway.batches.capacity import LineGate
from kvarn.gateway.batches.hold import Hold
from kvarn.gateway.batches.line import Refused, give_up, run_line
from kvarn.gateway.batches.line_source import LineSource
from kvarn.gateway.batches.pacing import PARK_S, Pacing
from kvarn.gateway.batches.validation import model_of
from kvarn.gateway.context import Gateway
from kvarn.store.errors import StoreAwayError
from kvarn.store.repositories.batch_lines import Answer, Line

_LOOK_AGAIN_S = 1.0
"""A batch that waits for a model, or for the database, sees whether it waits in vain so often."""

_log = logging.getLogger("kvarn.gateway")


@dataclass(slots=True, eq=False)
class _Attempt:
    """A line on its way."""

    line: Line
    gate: LineGate
    since: float
    """When it came to the gate. Monotonic seconds."""
    begun: bool = False
    """It is through the gate."""

    def in_vain_s(self, now: float) -> float:
        """Seconds that it has waited at a gate through which nobody goes; lines that come by turns get on."""
        return 0.0 if self.begun else min(now - self.since, self.gate.empty_s)


class Lines:
    """Runs the open lines of a batch.

    Args:
        gateway: Where they run.
        hold: The batch.
        gates: The way into each model's engine; under the empty name, for models that are not served.
        config: How batches are run.
        pacing: What the batch has met with so far.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        gateway: Gateway,
        hold: Hold,
        gates: Mapping[str, LineGate],
        config: BatchesConfig,
        pacing: Pacing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gateway = gateway
        self._hold = hold
        self._gates = gates
        self._config = config
        self._pacing = pacing
        self._clock = clock
        self._source = LineSource(hold.store, hold.batch.id)
        self._answers = Answers(hold, gateway.metrics)
        self._attempts: dict[asyncio.Task[Answer | Refused | None], _Attempt] = {}

    async def run(self) -> float:
        """Run lines until none is open or the hold is stopped.

        Returns:
            Seconds after which to go on, where the batch makes room for another; else 0.

        Raises:
            LeaseLostError: Another gateway has the batch.
            StoreAwayError: The run was stopped, and the last answers could not be kept.
        """
        hold, pacing = self._hold, self._pacing
        stopped, giving_way = [asyncio.create_task(event.wait()) for event in (hold.stopped, hold.gives_way)]
        pacing.taken(self._clock())
        try:
            while not hold.stopped.is_set():
                self._note_waiting_in_vain()
                if self._may_begin:
                    await self._fill()
                else:
                    await self._let_go()
                if not self._attempts:
                    if self._source.exhausted:
                        return 0.0
                    rest = pacing.rest_s(self._clock())
                    if rest or hold.gives_way.is_set():
                        return max(rest, PARK_S)
                signals = {stopped} if giving_way.done() else {stopped, giving_way}
                timeout = min(pacing.pause_s(self._clock()) or _LOOK_AGAIN_S, _LOOK_AGAIN_S)
                await asyncio.wait({*signals, *self._attempts}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                await self._settle()
            return 0.0
        finally:
            stopped.cancel()
            giving_way.cancel()
            await self._end()

    @property
    def _may_begin(self) -> bool:
        return not self._hold.gives_way.is_set() and not self._pacing.pause_s(self._clock())

    def _note_waiting_in_vain(self) -> None:
        """Where none of the models has had room for long, that holds up the batch like a refusal."""
        now = self._clock()
        if self._attempts and all(attempt.in_vain_s(now) >= PARK_S for attempt in self._attempts.values()):
            self._pacing.hold_up(now)
            _log.info("batch %s makes room for another: its models have none for it", self._hold.batch.id)

    async def _fill(self) -> None:
        while len(self._attempts) < self._config.max_in_flight:
            try:
                line = await self._source.take()
            except StoreAwayError as error:
                _log.warning("batch %s: its lines wait for the database: %s", self._hold.batch.id, error)
                return
            if line is None:
                return
            gate = self._gates.get(model_of(line.body) or "", self._gates[""])
            attempt = _Attempt(line, gate, self._clock())
            self._attempts[asyncio.create_task(self._run(attempt))] = attempt

    async def _run(self, attempt: _Attempt) -> Answer | Refused | None:
        batch = self._hold.batch
        async with attempt.gate.place(batch.organization_id):
            if not self._may_begin:
                return None
            attempt.begun = True
            principal = self._hold.principal
            assert principal is not None
            result = await run_line(
                self._gateway, principal, batch.id, batch.endpoint, attempt.line, self._hold.until_it_gives_way
            )
            if isinstance(result, Refused):
                self._note_refusal(result, attempt.gate)
            elif isinstance(result, Answer) and not result.failed:
                attempt.gate.answered()
                self._pacing.answered(self._clock())
        return result

    def _note_refusal(self, refused: Refused, gate: LineGate) -> None:
        if refused.by_engine:
            gate.refused()
        pause = self._pacing.hold_up(self._clock(), refused.retry_after_s)
        if pause:
            message = "batch %s waits %.0f s: a line was refused: %s"
            _log.info(message, self._hold.batch.id, pause, refused.error.message)

    async def _let_go(self) -> None:
        """Lines that are not through their gate leave it: nothing has been done for them."""
        waiting = [task for task, attempt in self._attempts.items() if not attempt.begun]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for task in reversed(waiting):
            if task.cancelled():
                self._source.put_back(self._attempts.pop(task).line)

    async def _settle(self) -> None:
        for task in reversed([task for task in self._attempts if task.done()]):
            attempt = self._attempts.pop(task)
            result = task.result()
            if result is None:
                self._source.put_back(attempt.line)
            elif isinstance(result, Refused):
                self._judge(result)
            else:
                self._answers.add(result)
        await self._answers.keep_trying()

    def _judge(self, refused: Refused) -> None:
        """Try a line that was refused again, or take that for its answer."""
        if refused.error.code == "replica_lost" and self._pacing.lost(refused.line.line):
            self._answers.add(give_up(self._hold.batch.id, refused))
            return
        self._gateway.metrics.batch_lines.labels("retried").inc()
        self._source.put_back(refused.line)

    async def _end(self) -> None:
        """End what is in flight; what was answered in the last moment is kept."""
        tasks = list(self._attempts)
        self._attempts.clear()
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Answer):
                self._answers.add(result)
        await self._answers.keep()
