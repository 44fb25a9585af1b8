"""The lines of a batch that ask for one model: as many at once as it has room for, each until it has an answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvarn.batches.capacity import LineGate
from kvarn.batches.hold import Hold
from kvarn.batches.line import Refused, give_up, run_line
from kvarn.batches.line_source import LineSource
from kvarn.batches.pacing import PARK_S, Pacing
from kvarn.responses.responses_context import ResponsesContext
from kvarn.store.errors import StoreAwayError
from kvarn.store.repositories.batches.lines import Answer, Line, OpenLine, read_line
from kvarn.store.repositories.batches.runs import LeaseLostError

_AT_GATE = 4
"""Lines that wait at a gate at which all places are taken: for the next that become free."""

_log = logging.getLogger("kvarn.gateway")


@dataclass(slots=True, eq=False)
class _Attempt:
    """A line on its way."""

    line: OpenLine
    since: float
    """When it came to the gate. Monotonic seconds."""
    begun: bool = False
    """It is through the gate."""


class Lane:
    """The open lines that ask for one model, or for none that is served. What holds them up (a model that is busy,
    sheds or is not there, a limit) holds up no line of another lane.

    Args:
        name: Of the model; empty for those that are not served.
        serving: Where the lines run.
        hold: Their batch.
        gate: The way into the model's engine.
        source: The lines.
        pacing: What they have met with so far.
        stir: Called when something has changed that `settle` or `fill` should look at.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        serving: ResponsesContext,
        hold: Hold,
        gate: LineGate,
        source: LineSource,
        pacing: Pacing,
        stir: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.pacing = pacing
        self._serving = serving
        self._hold = hold
        self._gate = gate
        self._source = source
        self._stir = stir
        self._clock = clock
        self._attempts: dict[asyncio.Task[Answer | Refused | None], _Attempt] = {}

    @property
    def under_way(self) -> bool:
        """Whether lines are at the gate, or through it."""
        return bool(self._attempts)

    @property
    def over(self) -> bool:
        """Whether every line has been answered."""
        return self._source.exhausted and not self._attempts

    @property
    def may_begin(self) -> bool:
        """Whether lines may be begun now."""
        return not self._hold.gives_way.is_set() and not self.pacing.pause_s(self._clock())

    def gets_nowhere(self, now: float) -> bool:
        """Whether it would hold the batch's place in vain for longer than that is worth."""
        return self._waits_in_vain(now) if self._attempts else self.pacing.rest_s(now) > 0

    def note_waiting_in_vain(self, now: float) -> None:
        """Where the model has had no room for long, that holds up its lines like a refusal."""
        if self._attempts and self._waits_in_vain(now):
            self.pacing.hold_up(now)

    def _waits_in_vain(self, now: float) -> bool:
        """Whether all its lines wait at a gate through which nobody goes; lines that come by turns get on."""
        waits = [0.0 if attempt.begun else now - attempt.since for attempt in self._attempts.values()]
        return min(*waits, self._gate.empty_s) >= PARK_S

    async def fill(self) -> None:
        """Send lines to the gate, as many as it has places for, and some to wait there.

        Raises:
            StoreAwayError: The database does not answer.
        """
        at_gate = max(_AT_GATE, self._gate.places)
        while self._waiting < at_gate:
            line = await self._source.take()
            if line is None:
                return
            attempt = _Attempt(line, self._clock())
            task = asyncio.create_task(self._run(attempt))
            task.add_done_callback(lambda _: self._stir())
            self._attempts[task] = attempt

    @property
    def _waiting(self) -> int:
        return sum(not attempt.begun for attempt in self._attempts.values())

    async def let_go(self) -> None:
        """Lines that are not through their gate leave it: nothing has been done for them."""
        waiting = [task for task, attempt in self._attempts.items() if not attempt.begun]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for task in waiting:
            if task.cancelled():
                self._source.put_back(self._attempts.pop(task).line)

    def settle(self) -> Iterator[Answer]:
        """Answers that have come since the last call. Lines without one are tried again, when their time has come."""
        for task in [task for task in self._attempts if task.done()]:
            line = self._attempts.pop(task).line
            result = task.result()
            if isinstance(result, Refused) and result.error.code == "replica_lost" and self.pacing.lost(line.line):
                result = give_up(self._hold.batch.id, result)
            if isinstance(result, Answer):
                yield result
                continue
            if result is not None:
                self._serving.metrics.batch_lines.labels("retried").inc()
            self._source.put_back(line)

    async def end(self) -> list[Answer]:
        """End what is in flight; what was answered in the last moment."""
        tasks = list(self._attempts)
        self._attempts.clear()
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, LeaseLostError):
                _log.error("batch %s: the run of a line broke off", self._hold.batch.id, exc_info=result)
        return [result for result in results if isinstance(result, Answer)]

    async def _run(self, attempt: _Attempt) -> Answer | Refused | None:
        batch = self._hold.batch
        async with self._gate.place(batch.organization_id):
            if not self.may_begin:
                return None
            attempt.begun = True
            if not self._waiting:
                self._stir()
            line = await self._read(attempt.line)
            if line is None:
                return None
            principal = self._hold.principal
            assert principal is not None
            result = await run_line(
                self._serving, principal, batch.id, batch.endpoint, line, self._hold.until_it_gives_way
            )
            if isinstance(result, Refused):
                self._note_refusal(result)
            elif isinstance(result, Answer) and not result.failed:
                self._gate.answered()
                self.pacing.answered(self._clock())
        return result

    async def _read(self, line: OpenLine) -> Line | None:
        """What a line asks, read only now: lines may wait for long, and be large. None where the database is away."""
        try:
            return await read_line(self._hold.store, self._hold.batch.id, line.line)
        except StoreAwayError as error:
            self.pacing.hold_up(self._clock())
            _log.warning("batch %s: its lines wait for the database: %s", self._hold.batch.id, error)
            return None

    def _note_refusal(self, refused: Refused) -> None:
        if refused.by_engine:
            self._gate.refused()
        pause = self.pacing.hold_up(self._clock(), refused.retry_after_s)
        if pause:
            message = "batch %s waits %.0f s with its lines for %r: a line was refused: %s"
            _log.info(message, self._hold.batch.id, pause, self.name, refused.error.message)
