"""Parts within the parts of an engine: reasons of waits, chunks of a prompt, what decode steps were for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kvarn.explain.explanation import Part, Stage
from kvarn.explain.pieces import Piece
from kvarn.explain.words import count
from kvarn.explain.work import OwnStep
from kvarn.observe.segments import EngineTurn
from kvarn.observe.timeline import Phase

WAITS = {
    Phase.WAIT_STEP: "step in flight",
    Phase.WAIT_SLOT: "slot",
    Phase.WAIT_BUDGET: "token budget",
    Phase.WAIT_LATENCY: "latency targets of others",
    Phase.WAIT_BLOCKS: "KV blocks",
    Phase.WAIT_ADAPTER: "adapter",
    Phase.WAIT_FETCH: "tier",
    Phase.WAIT_MASK: "grammar",
}
"""Names of waits."""
_TRANSFERS = (Phase.WAIT_ADAPTER, Phase.WAIT_FETCH)
_MAX_SIZES = 8
"""Sizes of chunks that are named; of more, only how many there were."""


def queue_part(phase: Phase, begin_s: float, end_s: float) -> Part:
    stage = Stage.TRANSFER if phase in _TRANSFERS else Stage.QUEUE
    return Part(name=WAITS[phase], stage=stage, begin_s=begin_s, end_s=end_s)


def prefill_part(
    piece: Piece, told: EngineTurn, begin_s: float, end_s: float, origin_s: float
) -> tuple[str, list[Part]]:
    """Words for a prefill, and its chunks. `origin_s`: when the request began, on the timeline's clock."""
    chunks, scheduled = piece.chunks, told.first.get("scheduled")
    words = []
    if chunks:
        sizes = [int(chunk.numbers["tokens"]) for chunk in chunks]
        steps = sum(int(chunk.numbers["steps"]) for chunk in chunks)
        named = " + ".join(f"{size:,}" for size in sizes) if len(sizes) <= _MAX_SIZES else f"{sum(sizes):,} tokens"
        words.append(f"{count(steps, 'chunk')}, {named}" if steps > 1 else f"{named} tokens")
    cached = 0 if scheduled is None or piece.again else int(scheduled.numbers["cached_tokens"])
    if cached:
        words.append(f"{cached:,} cached")
    parts, at_s = list[Part](), begin_s
    for chunk, _, chunk_end_s in piece.chunk_times():
        until = min(end_s, max(at_s, chunk_end_s - origin_s))
        parts.append(
            Part(name="chunk", stage=Stage.PREFILL, begin_s=at_s, end_s=until, detail=_chunk_detail(chunk.numbers))
        )
        at_s = until
    return "; ".join(words), parts


def _chunk_detail(numbers: Mapping[str, float]) -> str:
    tokens, others = int(numbers["tokens"]), int(numbers["step_tokens"]) - int(numbers["tokens"])
    return f"{tokens:,} tokens" + (f" beside {others:,} of others" if others > 0 else "")


def decode_parts(
    own: Sequence[OwnStep], begin_s: float, end_s: float, *, skipped_s: float, covered_s: float, whole: bool
) -> tuple[str, list[Part]]:
    """Words for a decode, and its time by what its steps were for: amounts, not in the order in which they came."""
    tokens = sum(step.tokens for step in own)
    if not own:
        return "", []
    words = [f"{tokens:,} token{'s' if tokens != 1 else ''}"]
    shared = sum(1 for step in own if step.prompts_s > 0)
    if shared:
        words.append(f"{count(shared, 'step').removeprefix('a ')} shared with a prompt")
    proposed = sum(step.proposed for step in own)
    if proposed:
        words.append(f"{sum(step.accepted for step in own)} proposals kept of {proposed}")
    if not whole:
        return ", ".join(words), []
    amounts = [
        ("own work", Stage.DECODE, sum(step.own_s for step in own)),
        ("beside prompts", Stage.DECODE, sum(step.prompts_s for step in own)),
        ("beside answers", Stage.DECODE, sum(step.shared_s - step.prompts_s for step in own)),
        ("steps without it", Stage.DECODE, skipped_s),
        ("slow", Stage.DECODE, sum(step.slow_s for step in own)),
    ]
    total, lasted = sum(seconds for _, _, seconds in amounts), end_s - begin_s
    scale = min(covered_s, lasted) / total if total else 0.0  # the first and the last may be partly in other parts
    parts, at_s = list[Part](), begin_s
    for name, stage, seconds in amounts:
        until = min(end_s, at_s + scale * seconds)
        if until > at_s:
            parts.append(Part(name=name, stage=stage, begin_s=at_s, end_s=until))
            at_s = until
    if at_s < end_s - 1e-9 or not parts:
        parts.append(Part(name="between steps", stage=Stage.UNEXPLAINED, begin_s=at_s, end_s=end_s))
    else:
        parts[-1] = msgspec.structs.replace(parts[-1], end_s=end_s)
    return ", ".join(words), parts
