"""Messages to a viewer: the whole state first, then what has changed since the state that they have.

Of other tenants a viewer sees the work, not who they are; of their own organisation the requests only as its admin.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from msgspec import UNSET, Struct, UnsetType

from kvarn.gateway.console.live.state import BlockTotals, LiveState, ReplicaLine, changed_runs
from kvarn.gateway.console.viewer import ANOTHER_TENANT, Viewer
from kvarn.wire.kv_map import KVMap, KVTierBlocks
from kvarn.wire.step_records import QueuedTurns, RunningTurn, StepRecord, StepTurn

MadeT = TypeVar("MadeT")


class TurnLine(Struct, frozen=True, kw_only=True):
    """A turn that steps speak of. What the viewer may not see is null."""

    number: int
    tenant: str
    request_id: str | None
    adapter: str | None
    priority: int
    prompt_tokens: int
    cached_tokens: int


class StepLine(Struct, frozen=True, kw_only=True):
    number: int
    at_s: float
    us: int
    floor_us: int
    """0: not known."""
    prefill_tokens: int
    decode_rows: int
    decode_context: int
    proposals: int
    free_blocks: int
    singles: list[int] | UnsetType = UNSET
    """Turns with a row that computed one token and drew one; absent: those of the step before it in this message."""
    rows: list[tuple[int, int, int]]
    """Turn, tokens computed, tokens drawn, of the other rows."""


class BlockRun(Struct, frozen=True, kw_only=True):
    """Blocks that follow one another: a byte a block, in base64 (`kvarn.wire.kv_map` says what the bytes mean)."""

    first: int
    states: str
    owners: str


class BlocksChange(Struct, frozen=True, kw_only=True):
    blocks: int
    tenants: list[str]
    """Names, by the bytes of `owners`; 254: one of too many, 255: nobody's."""
    tiers: list[KVTierBlocks]
    runs: list[BlockRun]


class LiveFrame(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole state (`state`), or what is different now (`update`): what is absent is as it was."""

    at_s: float
    model: str | UnsetType = UNSET
    replica: str | UnsetType = UNSET
    problem: str | UnsetType = UNSET
    """Why steps and blocks are not told; empty: they are."""
    steps: list[StepLine] | UnsetType = UNSET
    """Steps to add. One whose number is there already replaces it; 200 are shown."""
    turns: list[TurnLine] | UnsetType = UNSET
    running: list[RunningTurn] | UnsetType = UNSET
    queue: list[QueuedTurns] | UnsetType = UNSET
    totals: BlockTotals | UnsetType = UNSET
    replicas: list[ReplicaLine] | UnsetType = UNSET
    blocks: BlocksChange | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class ViewerNames:
    """Names of tenants as one viewer reads them."""

    viewer: Viewer
    names: Mapping[str, str]

    def name_of(self, tenant: str) -> str:
        return self.names.get(tenant, ANOTHER_TENANT)

    def sees(self, tenant: str) -> bool:
        return self.viewer.may_see(tenant)


def frame(before: LiveState | None, now: LiveState, names: ViewerNames) -> LiveFrame:
    """The message to one who has the state `before`. None, or a state of another engine process: all."""
    if before is not None and before.epoch != now.epoch:
        before = None

    def news(name: str, make: Callable[[Any], MadeT]) -> MadeT | UnsetType:
        value = getattr(now, name)
        return UNSET if before is not None and getattr(before, name) is value else make(value)

    last_turn = -1 if before is None else before.last_turn
    turns = [_turn(number, turn, names) for number, turn in now.turns.items() if number > last_turn]
    is_known = before is not None and before.problem == now.problem
    blocks = UNSET if now.blocks is None else news("blocks", partial(_blocks, before, names=names))
    return LiveFrame(
        at_s=now.at_s,
        problem=UNSET if is_known else now.problem,
        steps=news("steps", partial(_steps, before)),
        turns=turns if turns or before is None else UNSET,
        running=news("running", list),
        queue=news("queue", partial(_queue, names=names)),
        totals=news("totals", lambda totals: totals),
        replicas=news("replicas", list),
        blocks=blocks,
    )


def _steps(before: LiveState | None, steps: Sequence[StepRecord]) -> list[StepLine]:
    first = before.steps[-1].number if before is not None and before.steps else 0
    lines: list[StepLine] = []
    shown: list[int] | None = None
    for step in steps:
        if step.number < first:
            continue
        singles = [row.turn for row in step.rows if row.computed_tokens == row.output_tokens == 1]
        lines.append(
            StepLine(
                number=step.number,
                at_s=step.at_us / 1e6,
                us=step.us,
                floor_us=step.floor_us,
                prefill_tokens=step.prefill_tokens,
                decode_rows=step.decode_rows,
                decode_context=step.decode_context,
                proposals=step.proposals,
                free_blocks=step.free_blocks,
                singles=UNSET if singles == shown else singles,
                rows=[
                    (row.turn, row.computed_tokens, row.output_tokens)
                    for row in step.rows
                    if not row.computed_tokens == row.output_tokens == 1
                ],
            )
        )
        shown = singles
    return lines


def _turn(number: int, turn: StepTurn, names: ViewerNames) -> TurnLine:
    sees = names.sees(turn.tenant)
    return TurnLine(
        number=number,
        tenant=names.name_of(turn.tenant),
        request_id=turn.request_id if sees else None,
        adapter=turn.adapter if sees else None,
        priority=turn.priority,
        prompt_tokens=turn.prompt_tokens,
        cached_tokens=turn.cached_tokens,
    )


def _queue(queue: Sequence[QueuedTurns], names: ViewerNames) -> list[QueuedTurns]:
    """The groups by the names that the viewer reads: other tenants are one."""
    joined: dict[tuple[str, int, str], QueuedTurns] = {}
    for each in queue:
        name = names.name_of(each.tenant)
        key = (name, each.priority, each.reason)
        found = joined.get(key)
        joined[key] = QueuedTurns(
            name,
            each.priority,
            each.reason,
            each.sequences + (found.sequences if found else 0),
            each.tokens + (found.tokens if found else 0),
            round(max(each.oldest_s, found.oldest_s if found else 0.0), 3),
        )
    return list(joined.values())


def _blocks(before: LiveState | None, now: KVMap, names: ViewerNames) -> BlocksChange:
    owners, places = _owner_names(now, names)
    seen = None if before is None else before.blocks
    return BlocksChange(
        blocks=len(now.states),
        tenants=owners,
        tiers=now.tiers,
        runs=[
            BlockRun(
                first=first,
                states=b64encode(now.states[first:end]).decode(),
                owners=b64encode(now.owners[first:end].translate(places)).decode(),
            )
            for first, end in changed_runs(seen, now)
        ],
    )


def _owner_names(blocks: KVMap, names: ViewerNames) -> tuple[list[str], bytes]:
    """Names of owners as the viewer reads them, each once, and the place of each of the map's tenants among them."""
    owners = list(dict.fromkeys(map(names.name_of, blocks.tenants)))
    places = bytearray(range(256))
    for place, tenant in enumerate(blocks.tenants):
        places[place] = owners.index(names.name_of(tenant))
    return owners, bytes(places)
