"""Entries of a trace and the conversations that they make, without holding the trace in memory."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from itertools import count

import msgspec

from kvarn.traffic.conversation import Conversation, ConversationTurn, Traffic
from kvarn.traffic.workload import Segment

OWN_KEYS = 1 << 48
"""Segment keys from here on are those of prompts without block ids; a trace's own ids lie below."""
DISORDER = 1024
"""Entries that one may come too late by and still be put in its place."""
IDLE_S = 3600.0
"""A turn that comes so long after the one before it begins a new conversation of its session."""
LONGEST_S = 4 * 3600.0
"""So long a conversation is followed: what comes later of its session begins a new one. It bounds what is in memory."""


class TraceError(ValueError):
    """The trace cannot be read; the message names the line and what was expected."""


class TraceEntry(msgspec.Struct, frozen=True, kw_only=True):
    line: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    """Names of the prompt's blocks, the last one perhaps not full; empty where the trace has none."""
    block: int = 512
    session: str = ""
    took_s: float = 0.0
    """Seconds until it was answered, where the trace tells them."""
    gap_s: float | None = None
    """Seconds after the end of the session's turn before it; None: by the times of both."""
    turns: int | None = None
    """Turns of the conversation that it begins, where the trace tells them; None: as long as turns come."""
    tenant: str = ""
    model: str = ""


def checked(entry: TraceEntry) -> TraceEntry:
    """The entry. Raises `TraceError` where its numbers make no request."""
    where = f"line {entry.line} of the trace"
    if not math.isfinite(entry.arrival_s):
        raise TraceError(f"{where} has no finite time")
    if entry.prompt_tokens < 1 or entry.output_tokens < 0:
        raise TraceError(f"{where} has a prompt below 1 token or an answer below 0")
    if not 0 <= min(entry.hash_ids, default=0) <= max(entry.hash_ids, default=0) < OWN_KEYS:
        raise TraceError(f"{where} has a block id that is below 0, or not below {OWN_KEYS}")
    blocks = -(-entry.prompt_tokens // entry.block)
    if entry.hash_ids and len(entry.hash_ids) != blocks:
        raise TraceError(
            f"{where} names {len(entry.hash_ids)} blocks of {entry.block} tokens, "
            f"but a prompt of {entry.prompt_tokens} tokens has {blocks}"
        )
    return entry


def conversations(entries: Iterable[TraceEntry]) -> Traffic:
    """Conversations in the order of their beginnings, the first at 0 s. Entries of a session are its turns.

    Raises:
        TraceError: An entry comes more than `DISORDER` entries too late.
    """
    open_: dict[str, _Open] = {}
    waiting: list[tuple[float, int, _Open]] = []
    keys, order = count(OWN_KEYS), count()
    for entry in _from_zero(_in_order(entries)):
        now = entry.arrival_s
        found = open_.get(entry.session) if entry.session else None
        if found is None or not found.takes(now):
            found = _Open(now)
            heapq.heappush(waiting, (now, next(order), found))
            if entry.session:
                open_[entry.session] = found
        found.add(entry, keys)
        while waiting and not waiting[0][2].takes(now):
            yield _closed(heapq.heappop(waiting)[2], open_)
    while waiting:
        yield _closed(heapq.heappop(waiting)[2], open_)


class _Open:
    """A conversation of which further turns may come."""

    def __init__(self, begins_s: float) -> None:
        self._begins_s = begins_s
        self._entries: list[TraceEntry] = []
        self._turns: list[ConversationTurn] = []
        self._answer: Segment | None = None

    @property
    def session(self) -> str:
        return self._entries[0].session

    def takes(self, now: float) -> bool:
        """Whether an entry of its session that comes at `now` is one of its turns."""
        if not self._entries:
            return True
        first, last = self._entries[0], self._entries[-1]
        if first.turns is not None and len(self._entries) >= first.turns:
            return False
        is_over = now - (last.arrival_s + last.took_s) > IDLE_S or now - self._begins_s > LONGEST_S
        return bool(last.session) and not is_over

    def add(self, entry: TraceEntry, keys: Iterator[int]) -> None:
        gap_s = 0.0
        if self._entries:
            last = self._entries[-1]
            gap_s = max(0.0, entry.arrival_s - last.arrival_s - last.took_s) if entry.gap_s is None else entry.gap_s
        segments = _blocks(entry) if entry.hash_ids else self._grown(entry, keys)
        self._answer = Segment(next(keys), entry.output_tokens) if entry.session and not entry.hash_ids else None
        self._turns.append(
            ConversationTurn(
                segments=segments,
                output_tokens=max(1, entry.output_tokens),
                gap_s=gap_s,
                took_s=entry.took_s,
                answer_key=self._answer.key if self._answer else None,
            )
        )
        self._entries.append(entry)

    def conversation(self) -> Conversation:
        first = self._entries[0]
        return Conversation(
            begins_s=self._begins_s,
            turns=tuple(self._turns),
            tenant=first.tenant,
            session=first.session,
            model=first.model,
        )

    def _grown(self, entry: TraceEntry, keys: Iterator[int]) -> tuple[Segment, ...]:
        """The prompt before and its answer, and what is new, where it is long enough; else a prompt of its own."""
        before = (*self._turns[-1].segments, self._answer) if self._turns and self._answer else ()
        new = entry.prompt_tokens - sum(segment.length for segment in before)
        if new < 0:
            return (Segment(next(keys), entry.prompt_tokens),)
        return (*before, Segment(next(keys), new)) if new else before


def _closed(found: _Open, open_: dict[str, _Open]) -> Conversation:
    if open_.get(found.session) is found:
        del open_[found.session]
    return found.conversation()


def _blocks(entry: TraceEntry) -> tuple[Segment, ...]:
    *full, last = entry.hash_ids
    tail = entry.prompt_tokens - entry.block * len(full)
    return (*(Segment(name, entry.block) for name in full), Segment(last, tail))


def _in_order(entries: Iterable[TraceEntry]) -> Iterator[TraceEntry]:
    waiting: list[tuple[float, int, TraceEntry]] = []
    latest: tuple[float, int] | None = None
    for entry in entries:
        heapq.heappush(waiting, (entry.arrival_s, entry.line, entry))
        if len(waiting) > DISORDER:
            arrival_s, line, first = heapq.heappop(waiting)
            if latest is not None and arrival_s < latest[0]:
                raise TraceError(
                    f"line {line} of the trace is earlier than line {latest[1]}, which stands more than "
                    f"{DISORDER} requests before it: sort the trace by time"
                )
            latest = arrival_s, line
            yield first
    while waiting:
        arrival_s, line, first = heapq.heappop(waiting)
        if latest is not None and arrival_s < latest[0]:
            raise TraceError(f"line {line} of the trace is earlier than line {latest[1]}: sort the trace by time")
        yield first


def _from_zero(entries: Iterator[TraceEntry]) -> Iterator[TraceEntry]:
    start: float | None = None
    for entry in entries:
        start = entry.arrival_s if start is None else start
        yield msgspec.structs.replace(entry, arrival_s=entry.arrival_s - start)
