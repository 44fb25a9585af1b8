"""Events of a request in the engine, and the phase it is in at each moment.

Times are whole microseconds since the request was accepted, so that the phases sum to the turn exactly. All is added at
changes of state: nothing is done for a token.
"""

from __future__ import annotations

from kvarn.observe.timeline import WAITS_OR_PREEMPTED, EngineEventKind, Phase, waiting_reason

_MAX_CHUNKS = 16
"""Chunks told one by one; the last of them takes in all that follow."""
_MAX_LENGTH = 256
"""Integers of the events that wait to be told; after that, only the first token and the end are added."""
_ENDS = {
    Phase.WAIT_MASK: EngineEventKind.MASK_READY,
    Phase.WAIT_ADAPTER: EngineEventKind.ADAPTER_READY,
    Phase.WAIT_FETCH: EngineEventKind.FETCH_ENDED,
}
"""Events at the end of phases."""


class QueueWaits:
    """Waiting reason shared, at each moment, by all in the queue that have no reason of their own.

    A request takes `read` when it begins to wait so and again when it stops: the difference is its own.
    """

    def __init__(self) -> None:
        self._us = [0] * len(Phase)
        self._reason = Phase.WAIT_STEP
        self._since_us = 0
        self._turns = [0] * len(Phase)
        """Requests in each phase; those that wait for the reason of all are not counted."""

    @property
    def reason(self) -> Phase:
        return self._reason

    def hold(self, reason: Phase, now: float) -> None:
        self._hold(reason, _us(now))

    def read(self, now_us: int) -> tuple[int, ...]:
        self._hold(self._reason, now_us)
        return tuple(self._us)

    def count(self, left: Phase | None, entered: Phase | None) -> None:
        """A request goes from one phase to another; None: the reason of all, or it is not here."""
        if left is not None:
            self._turns[left] -= 1
        if entered is not None:
            self._turns[entered] += 1

    @property
    def num_counted(self) -> int:
        return sum(self._turns)

    def by_reason(self, waiting: int) -> dict[str, int]:
        """Waiting sequences, of which there are so many, by what they wait for (`waiting_reason`)."""
        counts = {phase: self._turns[phase] for phase in WAITS_OR_PREEMPTED if self._turns[phase]}
        if (rest := waiting - sum(counts.values())) > 0:
            counts[self._reason] = counts.get(self._reason, 0) + rest
        return {waiting_reason(phase): count for phase, count in counts.items()}

    def _hold(self, reason: Phase, now_us: int) -> None:
        self._us[self._reason] += now_us - self._since_us
        self._reason, self._since_us = reason, now_us


class TurnRecorder:
    def __init__(self, now: float, waits: QueueWaits, waiting: int) -> None:
        """`now`: seconds, when the request was accepted. `waiting`: sequences in the queue before it."""
        self._waits = waits
        self._accepted_us = self._since_us = _us(now)
        self._us = [0] * len(Phase)
        self._phase: Phase | None = None
        """None: it waits in the queue for the reason that `waits` has for all."""
        self._queue_mark = waits.read(self._since_us)
        self._events = [int(EngineEventKind.QUEUED), 0, waiting]
        self._chunk = -1
        """Place in `_events` of the last chunk's event; -1: it was told."""
        self._chunks = 0
        self._told_first = False
        self.is_decoding = False  # whether a token was drawn since known ones were computed
        self.num_running = 0  # choices that run
        self.preemptions = self.proposed_tokens = self.accepted_tokens = 0

    @property
    def phase(self) -> Phase | None:
        """The phase it is in; None: it waits in the queue for the reason that all have."""
        return self._phase

    @property
    def has_begun(self) -> bool:
        return self._phase is not None and self._phase >= Phase.PROMPT

    def wait(self, reason: Phase | None, now: float) -> None:
        """It waits for a reason of its own, or for that of the whole queue (None). Once it has begun it does not."""
        if reason is not self._phase and not self.has_begun:
            self._enter(reason, now)

    def fetch_begun(self, blocks: int, now: float) -> None:
        if not self.has_begun:
            self._add(now, EngineEventKind.FETCH_BEGUN, blocks)

    def start(self, now: float, computed_tokens: int, loaded_tokens: int, recomputed_tokens: int) -> None:
        """A choice begins to run: with so many tokens that need not be computed, some of them loaded from a tier, and,
        where it was preempted, so many that are computed again."""
        has_begun = self.has_begun
        self.num_running += 1
        if self.num_running == 1:
            self._enter(Phase.PROMPT, now)
            self.is_decoding = False
        if not has_begun:
            self._add(now, EngineEventKind.SCHEDULED, computed_tokens, loaded_tokens)
        elif recomputed_tokens:
            self._add(now, EngineEventKind.RESUMED, recomputed_tokens)

    def preempted(self, computed_tokens: int, now: float) -> None:
        self.preemptions += 1
        self._add(now, EngineEventKind.PREEMPTED, computed_tokens)

    def stop(self, now: float) -> None:
        self.num_running -= 1
        if not self.num_running:
            self._enter(Phase.PREEMPTED, now)

    def chunk(self, tokens: int, rows: int, step_tokens: int, now: float) -> None:
        """A part of its known tokens is computed in a step of so many rows and tokens."""
        self._chunks += 1
        if self._chunks > _MAX_CHUNKS and self._chunk >= 0:
            events, first = self._events, self._chunk + 2
            for place, number in enumerate((tokens, 1, rows, step_tokens), first):
                events[place] += number
            return
        self._chunk = len(self._events) if len(self._events) < _MAX_LENGTH else -1
        self._add(now, EngineEventKind.CHUNK, tokens, 1, rows, step_tokens)

    def decode(self, now: float) -> list[int] | None:
        """A token was drawn after known ones were computed. Returns what is told with the turn's first token."""
        self._enter(Phase.DECODE, now)
        self.is_decoding = True
        if self._told_first:
            return None
        self._told_first = True
        self._events += (int(EngineEventKind.FIRST_TOKEN), _us(now) - self._accepted_us)
        return self._drain(now)

    def finish(self, now: float, output_tokens: int) -> list[int]:
        self._enter(self._phase, now)
        numbers = (output_tokens, self.proposed_tokens, self.accepted_tokens, self.preemptions)
        self._events += (int(EngineEventKind.FINISHED), _us(now) - self._accepted_us, *numbers)
        return self._drain(now)

    def close(self) -> None:
        """The engine forgets the request: it is counted no more."""
        self._waits.count(self._phase, None)
        self._phase = None

    def _enter(self, phase: Phase | None, now: float) -> None:
        now_us, left = _us(now), self._phase
        if left is not phase:
            self._waits.count(left, phase)
        if left is None:
            for each, (before, after) in enumerate(zip(self._queue_mark, self._waits.read(now_us), strict=True)):
                self._us[each] += after - before
        else:
            self._us[left] += now_us - self._since_us
            if left in _ENDS and phase is not Phase.WAIT_BLOCKS:
                self._add(now, _ENDS[left])
        if phase is None:
            self._queue_mark = self._waits.read(now_us)
        self._phase, self._since_us = phase, now_us

    def _add(self, now: float, kind: EngineEventKind, *numbers: int) -> None:
        if len(self._events) < _MAX_LENGTH:
            self._events += (int(kind), _us(now) - self._accepted_us, *numbers)

    def _drain(self, now: float) -> list[int]:
        at_us = _us(now) - self._accepted_us
        for phase, spent in enumerate(self._us):
            if spent:
                self._events += (int(EngineEventKind.SPENT), at_us, phase, spent)
        events, self._events, self._chunk, self._chunks = self._events, [], -1, 0
        return events


def _us(now: float) -> int:
    return round(now * 1e6)
