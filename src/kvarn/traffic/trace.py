"""Recorded traffic: when requests came, how long they were, and which prompt blocks they shared.

Two public formats are read. Azure's LLM inference traces are CSV with `TIMESTAMP,ContextTokens,GeneratedTokens`.
Mooncake's are JSON lines with `timestamp` (ms), `input_length`, `output_length` and `hash_ids`: one id for each block
of 512 prompt tokens; requests whose ids begin alike had prompts that begin alike.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import Literal

import msgspec

from kvarn.traffic.workload import BenchRequest, Segment

MOONCAKE_BLOCK = 512
"""Prompt tokens that one hash id of a Mooncake trace stands for."""

TraceFormat = Literal["auto", "azure", "mooncake"]


class TraceError(ValueError):
    """The trace cannot be read; the message names the line and what was expected."""


class TraceEntry(msgspec.Struct, frozen=True, kw_only=True):
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    """Names of the prompt's 512-token blocks, the last one perhaps not full; empty where the trace has none."""


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """Scaling of a trace to the server under test."""

    time: float = 1.0
    """Multiplies arrival times: 0.5 sends twice as fast."""
    length: float = 1.0
    """Multiplies prompt, output and shared block lengths: structure stays, sizes shrink."""
    max_prompt_tokens: int | None = None
    """Longer prompts are cut at their end, so that what they share is kept."""
    max_output_tokens: int | None = None
    """Longer answers are cut."""


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []


def read_trace(path: Path, form: TraceFormat = "auto", max_requests: int | None = None) -> list[TraceEntry]:
    """Read the first `max_requests` entries, ordered by arrival, the first at 0 s.

    Raises:
        TraceError: The file cannot be read, is empty, or a line is not of the format.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            entries = list(islice(parse_trace(lines, form), max_requests))
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot read the trace {path}: {error}") from None
    if not entries:
        raise TraceError(f"the trace {path} holds no requests")
    entries.sort(key=lambda entry: entry.arrival_s)
    start = entries[0].arrival_s
    return [msgspec.structs.replace(entry, arrival_s=entry.arrival_s - start) for entry in entries]


def parse_trace(lines: Iterable[str], form: TraceFormat = "auto") -> Iterator[TraceEntry]:
    """Entries as they stand in the file, arrival times as recorded. `auto` looks at the first line."""
    rest = iter(lines)
    first = next(rest, None)
    if first is None:
        return
    if form == "auto":
        form = "mooncake" if first.lstrip().startswith("{") else "azure"
    parse = _parse_mooncake if form == "mooncake" else _parse_azure
    yield from parse(chain([first], rest))


def scale_trace(entries: Iterable[TraceEntry], scaling: Scaling) -> list[BenchRequest]:
    """Requests to send. A hash id becomes a fixed block of `round(512 x length)` tokens, so that equal ids give
    equal tokens; prompts without ids share nothing."""
    block = max(1, round(MOONCAKE_BLOCK * scaling.length))
    requests = []
    for index, entry in enumerate(entries):
        output = max(1, round(entry.output_tokens * scaling.length))
        requests.append(
            BenchRequest(
                index=index,
                segments=_cut(_segments(entry, index, block, scaling.length), scaling.max_prompt_tokens),
                output_tokens=min(output, scaling.max_output_tokens or output),
                arrival_s=entry.arrival_s * scaling.time,
            )
        )
    return requests


def _segments(entry: TraceEntry, index: int, block: int, length_scale: float) -> list[Segment]:
    if not entry.hash_ids:
        return [Segment(key=index, length=max(1, round(entry.prompt_tokens * length_scale)))]
    tail = entry.prompt_tokens - MOONCAKE_BLOCK * (len(entry.hash_ids) - 1)
    last = min(block, max(1, round(tail * length_scale)))
    full = [Segment(key=name, length=block) for name in entry.hash_ids[:-1]]
    return [*full, Segment(key=entry.hash_ids[-1], length=last)]


def _cut(segments: list[Segment], limit: int | None) -> tuple[Segment, ...]:
    if limit is None:
        return tuple(segments)
    kept: list[Segment] = []
    left = limit
    for segment in segments:
        if left <= 0:
            break
        kept.append(Segment(key=segment.key, length=min(segment.length, left)))
        left -= segment.length
    return tuple(kept)


def _parse_azure(lines: Iterator[str]) -> Iterator[TraceEntry]:
    for number, row in enumerate(csv.reader(lines), start=1):
        if not row or row[0].strip().upper() == "TIMESTAMP":
            continue
        try:
            when, prompt, output = row[0], int(row[1]), int(row[2])
            arrival = datetime.fromisoformat(when.strip()).timestamp()
        except (ValueError, IndexError):
            expected = "TIMESTAMP,ContextTokens,GeneratedTokens"
            raise TraceError(f"line {number} of the trace is not `{expected}`: {','.join(row)[:80]!r}") from None
        yield _checked(number, TraceEntry(arrival_s=arrival, prompt_tokens=prompt, output_tokens=output))


def _parse_mooncake(lines: Iterator[str]) -> Iterator[TraceEntry]:
    decoder = msgspec.json.Decoder(_MooncakeLine)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            read = decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise TraceError(f"line {number} of the trace is not a Mooncake entry: {error}") from None
        blocks = -(-read.input_length // MOONCAKE_BLOCK)
        if read.hash_ids and len(read.hash_ids) != blocks:
            raise TraceError(
                f"line {number} of the trace names {len(read.hash_ids)} blocks of {MOONCAKE_BLOCK} tokens, "
                f"but a prompt of {read.input_length} tokens has {blocks}"
            )
        entry = TraceEntry(
            arrival_s=read.timestamp / 1000,
            prompt_tokens=read.input_length,
            output_tokens=read.output_length,
            hash_ids=tuple(read.hash_ids),
        )
        yield _checked(number, entry)


def _checked(number: int, entry: TraceEntry) -> TraceEntry:
    if entry.prompt_tokens < 1 or entry.output_tokens < 0 or min(entry.hash_ids, default=0) < 0:
        raise TraceError(f"line {number} of the trace has a length or block id below its least value")
    return entry
