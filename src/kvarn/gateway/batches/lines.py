"""The lines of a batch that is in progress: as many at once as there is room for, each until it has an answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping

from kvarn.config.platform import BatchesConfig
from kvarn.gateway.batches.capacity import LineGate
from kvarn.gateway.batches.hold import Hold
from kvarn.gateway.batches.line import Refused, give_up, run_line
from kvarn.gateway.batches.validation import model_of
from kvarn.gateway.context import Gateway
from kvarn.store.errors import StoreAwayError
from kvarn.store.repositories.batch_lines import Answer, Line, answer_lines, open_lines

PARK_S = 5.0
"""A batch that has to wait for longer makes room for another."""

_READ_AT_ONCE = 16
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_MOST_LOSSES = 5
"""A line beside which the engine died so often is not tried again: it may be what kills it."""
_QUOTA = "insufficient_quota"

_log = logging.getLogger("kvarn.gateway")


class Lines:
    """Runs the open lines of a batch.

    A refusal (429, 503) holds up the whole batch: what refuses one line refuses the next. The pause is the one the
    refusal names, else it doubles with each refusal in a row.

    Args:
        gateway: Where they run.
        hold: The batch.
        gates: The way into each model's engine; under the empty name, for models that are not served.
        config: How batches are run.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        gateway: Gateway,
        hold: Hold,
        gates: Mapping[str, LineGate],
        config: BatchesConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gateway = gateway
        self._hold = hold
        self._gates = gates
        self._config = config
        self._clock = clock
        self._tasks: set[asyncio.Task[Answer | Refused | None]] = set()
        self._waiting: deque[Line] = deque()
        self._after = 0
        self._read_all = False
        self._unkept: list[Answer] = []
        self._losses: Counter[int] = Counter()
        self._refusals = 0
        self._resume_at = clock()

    async def run(self) -> float:
        """Run lines until none is open or the hold is stopped.

        Returns:
            Seconds after which to go on, where the batch has to wait for longer than is worth holding it, or gives way;
            else 0.

        Raises:
            LeaseLostError: Another gateway has the batch.
            StoreAwayError: The run was stopped, and the last answers could not be kept.
        """
        stopped = asyncio.create_task(self._hold.stopped.wait())
        try:
            while not self._hold.stopped.is_set():
                await self._fill()
                pause = max(0.0, self._resume_at - self._clock())
                if not self._tasks:
                    if not self._waiting and self._read_all:
                        return 0.0
                    if pause > PARK_S or self._hold.gives_way:
                        return max(pause, PARK_S)
                done, _ = await asyncio.wait(
                    {stopped, *self._tasks}, timeout=pause or None, return_when=asyncio.FIRST_COMPLETED
                )
                await self._settle(task for task in self._tasks & done)
            return 0.0
        finally:
            stopped.cancel()
            await self._give_up()

    @property
    def _may_begin(self) -> bool:
        return not self._hold.gives_way and self._clock() >= self._resume_at

    async def _fill(self) -> None:
        while self._may_begin and len(self._tasks) < self._config.max_in_flight:
            try:
                if not self._waiting and not await self._read():
                    return
            except StoreAwayError as error:
                _log.warning("batch %s: its lines wait for the database: %s", self._hold.batch.id, error)
                self._resume_at = self._clock() + _FIRST_PAUSE_S
                return
            line = self._waiting.popleft()
            self._tasks.add(asyncio.create_task(self._run(line)))

    async def _read(self) -> bool:
        if self._read_all:
            return False
        found = await open_lines(self._hold.store, self._hold.batch.id, self._after, _READ_AT_ONCE)
        self._read_all = len(found) < _READ_AT_ONCE
        if found:
            self._after = found[-1].line
            self._waiting.extend(found)
        return bool(found)

    async def _run(self, line: Line) -> Answer | Refused | None:
        batch = self._hold.batch
        gate = self._gates.get(model_of(line.body) or "", self._gates[""])
        async with gate.place(batch.organization_id):
            if self._hold.gives_way:
                return None  # it stays open
            principal = self._hold.principal
            assert principal is not None
            result = await run_line(self._gateway, principal, batch.id, batch.endpoint, line)
            if isinstance(result, Refused):
                gate.refused()
            else:
                gate.answered()
        return result

    async def _settle(self, done: Iterable[asyncio.Task[Answer | Refused | None]]) -> None:
        for task in list(done):
            self._tasks.discard(task)
            result = task.result()
            answer = self._judge(result) if isinstance(result, Refused) else result
            if answer is not None:
                self._unkept.append(answer)
                self._refusals = self._refusals if answer.failed else 0
        while self._unkept and not self._hold.stopped.is_set():
            try:
                await self._keep()
            except StoreAwayError as error:  # the answers have been paid for: they wait until it is back
                _log.warning("batch %s: answers wait for the database: %s", self._hold.batch.id, error)
                await asyncio.sleep(_FIRST_PAUSE_S)

    def _judge(self, refused: Refused) -> Answer | None:
        """The final answer of a line that was refused; None where it is to be tried again."""
        error, line = refused.error, refused.line
        if error.code == "replica_lost":
            self._losses[line.line] += 1
        # A rate limit that names no time to come back is smaller than the line itself.
        hopeless = error.status == 429 and refused.retry_after_s is None and error.code != _QUOTA
        if hopeless or self._losses[line.line] >= _MOST_LOSSES:
            return give_up(self._hold.batch.id, refused)
        self._gateway.metrics.batch_lines.labels("retried").inc()
        self._waiting.appendleft(line)
        now = self._clock()
        if now >= self._resume_at:  # the first of those that were in flight together
            pause = refused.retry_after_s or min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**self._refusals)
            self._refusals += 1
            self._resume_at = now + pause
            message = "batch %s waits %.0f s: a line was refused: %s"
            _log.info(message, self._hold.batch.id, pause, error.message)
        return None

    async def _keep(self) -> None:
        if not self._unkept:
            return
        answers = list(self._unkept)
        await answer_lines(self._hold.store, self._hold.holder, self._hold.batch.id, answers)
        del self._unkept[: len(answers)]
        for answer in answers:
            self._gateway.metrics.batch_lines.labels("failed" if answer.failed else "completed").inc()

    async def _give_up(self) -> None:
        """End what is in flight; what was answered in the last moment is kept."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        self._unkept += [result for result in results if isinstance(result, Answer)]
        await self._keep()
