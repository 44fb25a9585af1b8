"""Formats of traces with one request a line: Azure's and BurstGPT's CSV, Mooncake's JSON lines.

Mooncake's lines are also what Kvarn exports. They may have AIPerf's `session_id` and `delay` for turns of a session,
and `duration` (ms that it took), `turns` (of the conversation that it begins), `tenant`, `model` and `block_size`,
which are our own.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec

from kvarn.traffic.entries import TraceEntry, TraceError, checked

MOONCAKE_BLOCK = 512
"""Prompt tokens that one hash id of a Mooncake trace stands for."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class MooncakeLine(msgspec.Struct, omit_defaults=True):
    """A request. Times are milliseconds."""

    input_length: int
    output_length: int
    timestamp: float | None = None
    hash_ids: list[int] = []
    session_id: str = ""
    delay: float | None = None
    """After the end of the session's turn before it."""
    turns: int | None = None
    duration: float = 0.0
    tenant: str = ""
    model: str = ""
    block_size: int = MOONCAKE_BLOCK


def azure_entries(lines: Iterator[str]) -> Iterator[TraceEntry]:
    """`TIMESTAMP,ContextTokens,GeneratedTokens`, as in 2023 and 2024. Times without a zone are UTC."""
    for number, row in enumerate(csv.reader(lines), start=1):
        if not row or row[0].strip().upper() == "TIMESTAMP":
            continue
        try:
            prompt, output = int(row[1]), int(row[2])
            when = datetime.fromisoformat(row[0].strip())
        except (ValueError, IndexError):
            expected = "TIMESTAMP,ContextTokens,GeneratedTokens"
            raise TraceError(f"line {number} of the trace is not `{expected}`: {','.join(row)[:80]!r}") from None
        since = (when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH
        arrival_s = since // timedelta(microseconds=1) / 1e6
        yield checked(TraceEntry(line=number, arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output))


def burstgpt_entries(lines: Iterator[str]) -> Iterator[TraceEntry]:
    """BurstGPT's columns, by their names; sessions and elapsed times where there are any. Requests that failed (no
    tokens in the answer) are left out."""
    rows = csv.DictReader(lines)
    for number, row in enumerate(rows, start=2):
        try:
            arrival_s, prompt, output = (
                float(row["Timestamp"]),
                int(float(row["Request tokens"])),
                int(float(row["Response tokens"])),
            )
            took_s = float(row.get("Elapsed time") or 0.0)
        except (ValueError, TypeError, KeyError):
            expected = "Timestamp,Model,Request tokens,Response tokens"
            raise TraceError(f"line {number} of the trace has no numbers in the columns {expected}") from None
        if prompt < 1 or output < 1:
            continue
        entry = TraceEntry(
            line=number,
            arrival_s=arrival_s,
            prompt_tokens=prompt,
            output_tokens=output,
            session=row.get("Session ID") or "",
            took_s=max(0.0, took_s),
        )
        yield checked(entry)


def mooncake_entries(lines: Iterator[str]) -> Iterator[TraceEntry]:
    decoder = msgspec.json.Decoder(MooncakeLine)
    arrival_s = 0.0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            read = decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise TraceError(f"line {number} of the trace is not a Mooncake entry: {error}") from None
        if read.timestamp is None and (read.delay is None or not read.session_id):
            raise TraceError(f"line {number} of the trace has neither a timestamp nor a delay in a session")
        if read.block_size < 1 or read.duration < 0 or (read.delay or 0.0) < 0:
            raise TraceError(f"line {number} of the trace has a block_size, duration or delay below its least value")
        # A turn with only a delay stands behind the one before it in the file.
        arrival_s = arrival_s if read.timestamp is None else read.timestamp / 1000
        entry = TraceEntry(
            line=number,
            arrival_s=arrival_s,
            prompt_tokens=read.input_length,
            output_tokens=read.output_length,
            hash_ids=tuple(read.hash_ids),
            block=read.block_size,
            session=read.session_id,
            took_s=read.duration / 1000,
            gap_s=None if read.delay is None else read.delay / 1000,
            turns=read.turns,
            tenant=read.tenant,
            model=read.model,
        )
        yield checked(entry)
