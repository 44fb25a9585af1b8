"""The lines of a batch that is in progress: in a lane for each model, all at once, until none is open."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from kvarn.batches.answers import Answers
from kvarn.batches.capacity import LineGate
from kvarn.batches.hold import Hold
from kvarn.batches.lane import Lane
from kvarn.batches.line_source import LineSource
from kvarn.batches.pacing import PARK_S, Pacings
from kvarn.responses.responses_context import ResponsesContext
from kvarn.store.errors import StoreAwayError

_LOOK_AGAIN_S = 1.0
"""A batch that waits for a model, or for the database, sees whether it waits in vain so often."""

_log = logging.getLogger("kvarn.gateway")


class Lines:
    """Runs the open lines of a batch.

    Args:
        serving: Where they run.
        hold: The batch.
        gates: The way into each model's engine; under the empty name, for models that are not served.
        pacings: What the batch has met with so far.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        serving: ResponsesContext,
        hold: Hold,
        gates: Mapping[str, LineGate],
        pacings: Pacings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._serving = serving
        self._hold = hold
        self._gates = gates
        self._pacings = pacings
        self._clock = clock
        self._stirred = asyncio.Event()
        self._answers = Answers(hold, serving.metrics)
        only = hold.batch.model
        names = gates if only is None else {only if only in gates else ""}
        self._lanes = [self._lane(name) for name in names]

    def _lane(self, name: str) -> Lane:
        store, batch = self._hold.store, self._hold.batch
        served = self._gates.keys() - {""}
        source = LineSource(store, batch.id, name) if name else LineSource(store, batch.id, besides=served)
        pacing, gate = self._pacings[name], self._gates[name]
        return Lane(name, self._serving, self._hold, gate, source, pacing, self._stirred.set, self._clock)

    async def run(self) -> float:
        """Run lines until none is open or the hold is stopped.

        Returns:
            Seconds after which to go on, where the batch makes room for another; else 0.

        Raises:
            LeaseLostError: Another gateway has the batch.
            StoreAwayError: The run was stopped, and the last answers could not be kept.
        """
        hold = self._hold
        watchers = [asyncio.create_task(self._watch(event)) for event in (hold.stopped, hold.gives_way)]
        for lane in self._lanes:
            lane.pacing.taken(self._clock())
        try:
            while not hold.stopped.is_set():
                self._note_waiting_in_vain()
                await self._begin()
                if all(lane.over for lane in self._lanes):
                    return 0.0
                rest = self._rest_s()
                if rest:
                    return rest
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._look_again_s()):
                        await self._stirred.wait()
                self._stirred.clear()  # first: what comes while answers are written is looked at in the next round
                await self._settle()
            return 0.0
        finally:
            for watcher in watchers:
                watcher.cancel()
            await self._end()

    async def _watch(self, event: asyncio.Event) -> None:
        await event.wait()
        self._stirred.set()

    @property
    def _open(self) -> list[Lane]:
        return [lane for lane in self._lanes if not lane.over]

    def _note_waiting_in_vain(self) -> None:
        """Where no lane gets on, those that wait for a model with no room are held up like those that were refused.
        While another does, they may stay: they take no place from anybody."""
        now, lanes = self._clock(), self._open
        if any(lane.under_way for lane in lanes) and all(lane.gets_nowhere(now) for lane in lanes):
            for lane in lanes:
                lane.note_waiting_in_vain(now)
            _log.info("batch %s makes room for another: its models have none for it", self._hold.batch.id)

    async def _begin(self) -> None:
        try:
            for lane in self._lanes:
                if lane.may_begin:
                    await lane.fill()
                else:
                    await lane.let_go()
        except StoreAwayError as error:
            _log.warning("batch %s: its lines wait for the database: %s", self._hold.batch.id, error)

    def _rest_s(self) -> float:
        """Seconds to rest, where nothing is under way and nothing will be soon; else 0."""
        lanes, now = self._open, self._clock()
        if any(lane.under_way for lane in lanes):
            return 0.0
        rest = min(lane.pacing.rest_s(now) for lane in lanes)
        return max(rest, PARK_S) if rest or self._hold.gives_way.is_set() else 0.0

    def _look_again_s(self) -> float:
        now = self._clock()
        pauses = [lane.pacing.pause_s(now) for lane in self._open]
        return min([pause for pause in pauses if pause] + [_LOOK_AGAIN_S])

    async def _settle(self) -> None:
        for lane in self._lanes:
            for answer in lane.settle():
                self._answers.add(answer)
        await self._answers.keep_trying()

    async def _end(self) -> None:
        """End what is in flight; what was answered in the last moment is kept."""
        for answers in await asyncio.gather(*[lane.end() for lane in self._lanes]):
            for answer in answers:
                self._answers.add(answer)
        await self._answers.keep()
