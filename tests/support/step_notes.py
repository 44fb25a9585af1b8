"""A test's own notes of an engine's steps, against which its log and its map of blocks are compared."""

from __future__ import annotations

from collections import Counter

from engine_world import World
from kvarn.engine.live import live_steps
from kvarn.engine.step_reports import StepReport
from kvarn.replica.server.block_map import block_map
from kvarn.wire.kv_map import ADAPTER, CACHED, HOLDERS, NO_OWNER
from kvarn.wire.step_records import MAX_LIVE_STEPS


class StepNotes:
    """Notes what the executor was given and what the clients heard, step by step."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._noted: list[tuple[int, Counter[str], Counter[str], int]] = []
        """Number of each step; tokens computed and drawn for each request; its rows."""
        self._refused: set[str] = set()

    def step(self) -> None:
        executor, messages = self._world.executor, self._world.messages
        before = len(executor.plans)
        deltas = self._world.step()
        if len(executor.plans) == before:
            return
        (plan,) = executor.plans[before:]
        ids = {id(message.prompt_token_ids): request_id for request_id, message in messages.items()}
        computed, drawn = Counter[str](), Counter[str]()
        for row in plan.rows:
            request_id = ids[id(executor.slots[row.slot].new.prompt_token_ids)]
            computed[request_id] += len(row.token_ids)
        for delta in deltas:
            drawn[delta.request_id] += len(delta.token_ids)
        self._noted.append((plan.step, computed, +drawn, len(plan.rows)))

    def check_log(self) -> None:
        """The log has these steps and no others, each with who was in it."""
        log = self._world.engine.step_log
        report = StepReport(log, lambda shape: 0.0)
        report.add(log.since(0, 10**9))
        assert [step.number for step in report.steps] == [number for number, *_ in self._noted]
        for step, (_, computed, drawn, rows) in zip(report.steps, self._noted, strict=True):
            told_computed, told_drawn = Counter[str](), Counter[str]()
            for row in step.rows:
                told_computed[report.turns[row.turn].request_id] += row.computed_tokens
                told_drawn[report.turns[row.turn].request_id] += row.output_tokens
            assert told_computed == computed
            assert +told_drawn == drawn
            assert len(step.rows) == rows
            assert step.prefill_tokens + step.decode_rows + step.proposals == computed.total()
        self._check_times(report)
        core, now = self._world.engine, self._world.now
        live = live_steps(core.scheduler, log, core.preparing, 0, now, lambda shape: 0.0)
        assert [step.number for step in live.steps] == [step.number for step in report.steps[-MAX_LIVE_STEPS:]]

    def _check_times(self, report: StepReport) -> None:
        for step, after in zip(report.steps, report.steps[1:], strict=False):
            assert step.us >= 0
            assert step.at_us + step.us <= after.at_us, "steps overlap"

    def check_map(self) -> None:
        """Each block is drawn as who holds it; its owner is told wherever somebody does, or the cache names it."""
        core = self._world.engine
        memory = core.scheduler.memory
        part = block_map(memory, core.scheduler.running, self._world.now)
        holders = Counter(block for each in core.scheduler.running for block in each.blocks)
        tenants = {block: each.request.scope.tenant for each in core.scheduler.running for block in each.blocks}
        adapters = set(memory.adapters.blocks)
        assert len(part.states) == len(part.owners) == memory.pool.num_blocks
        for block, (state, owner) in enumerate(zip(part.states, part.owners, strict=True)):
            assert bool(state & ADAPTER) == (block in adapters)
            assert bool(state & CACHED) == (memory.pool.is_cached(block) and block not in adapters)
            if block in adapters:
                continue
            level, held = state & 7, holders[block]
            assert HOLDERS[level] <= held and (level == len(HOLDERS) - 1 or level < 2 or held < HOLDERS[level + 1])
            assert (level == 1) == (not held and bool(state & CACHED))
            told = None if owner == NO_OWNER else part.tenants[owner]
            assert told == tenants.get(block, told)
            assert (told is None) == (not held and not state & CACHED)
