"""One step: its plan while it is built (`StepBuilder`), and until its result is there (`SubmittedStep`)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from kvarn.config.engine import EngineConfig
from kvarn.costs.prefill_speed import longest_step_s
from kvarn.costs.step_times import StepShape
from kvarn.engine.memory.kv_cache_manager import KVCacheManager
from kvarn.engine.plan import (
    LAST_SAMPLED,
    NO_SNAPSHOT,
    AdapterLoad,
    BlockCopy,
    BlockTransfer,
    BlockUpdate,
    NewSequence,
    Row,
    RowMasks,
    StateSave,
    StepPlan,
)
from kvarn.engine.request import Sequence
from kvarn.engine.step_time import StepTimeModel
from kvarn.shapes import BLOCK_SIZE

_NO_PROPOSALS: list[int] = []


@dataclass(slots=True)
class RowExtras:
    """Work of a step for one row beside computing its tokens."""

    charged: int = 0
    copies: list[BlockCopy] = field(default_factory=list)
    proposals: list[int] = field(default_factory=list)
    """Tokens to verify at its end; they count as the row's."""
    is_forced: bool = False
    """Whether its proposals are what the mask forces: there is nothing to verify."""
    saves: list[StateSave] = field(default_factory=list)


class StepBuilder:
    """The budget of one step: it hands out shares until nothing is left, then becomes a `StepPlan`. Most rows are a
    decode's single token, without extras."""

    def __init__(
        self, config: EngineConfig, step_time: StepTimeModel, limit_s: Callable[[], float | None] = lambda: None
    ) -> None:
        """`limit_s`: how long the step may take for the latency targets of those that run; None: as configured."""
        self.tokens_left = config.token_budget
        self.shape = StepShape()
        self.rows: dict[Sequence, int] = {}
        """Tokens of each sequence to be computed. A row can still be taken out of the step."""
        self.extras: dict[Sequence, RowExtras] = {}  # extras of the few rows that have any
        self.admitted: list[Sequence] = []
        self.preempted = False  # whether memory ran out: then no new sequence starts in this step
        self._masks: dict[int, RowMasks] = {}
        self._config = config
        self._step_time = step_time
        self._limit_s = limit_s

    def share(self, start: int, wanted: int) -> int:
        """Tokens that a sequence with `wanted` tokens to compute from `start` on gets in this step.

        A single token is a decode and needs only budget. A longer part is cut so that the step keeps the TPOT target
        of the decodes beside it; where they miss it even alone, so that they are stretched by no more than the
        configured factor. The step always carries `min_prefill_chunk` prompt tokens.
        """
        granted = min(wanted, self.tokens_left)
        if wanted == 1 or not self.shape.decode_rows:
            return granted
        in_time = self._step_time.prefill_room(self.shape, start, self._longest_s())
        return min(granted, max(in_time, self._config.min_prefill_chunk - self.shape.prefill_tokens))

    def _longest_s(self) -> float:
        if not self._step_time.is_settled:
            return self._config.tpot_target_ms / 1000
        decodes_s = self._step_time.times.decode_s(self.shape.decode_rows, self.shape.decode_context)
        return longest_step_s(self._config, decodes_s, self._limit_s())

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        self.rows[sequence] = num_tokens
        self.tokens_left -= num_tokens
        self.shape.add(sequence.num_computed_tokens, num_tokens)

    def extra(self, sequence: Sequence) -> RowExtras:
        found = self.extras.get(sequence)
        if found is None:
            found = self.extras[sequence] = RowExtras()
        return found

    def remove(self, sequence: Sequence) -> int:
        """Take a sequence's row, if it has one, out again, its copies with it; returns the tokens charged for it."""
        num_tokens = self.rows.pop(sequence, 0)
        if num_tokens:
            self.tokens_left += num_tokens
            self.shape.add(sequence.num_computed_tokens, num_tokens, sign=-1)
        extra = self.extras.pop(sequence, None)
        if extra is None:
            return 0
        if extra.copies:  # what was to be copied is not there
            sequence.num_computed_tokens = min(
                sequence.num_computed_tokens, BLOCK_SIZE * sequence.blocks.index(extra.copies[0].target)
            )
        return extra.charged

    def propose(self, sequence: Sequence, proposals: list[int], *, is_forced: bool = False) -> None:
        """Append tokens to verify, or such as the mask forces, to a sequence's row. No row is taken out of the step
        afterwards."""
        num_tokens, extra = self.rows[sequence], self.extra(sequence)
        self.shape.add_proposals(sequence.num_computed_tokens + num_tokens, len(proposals))
        self.rows[sequence] = num_tokens + len(proposals)
        self.tokens_left -= len(proposals)
        extra.proposals, extra.is_forced = proposals, is_forced

    def add_forced(self, memory: KVCacheManager) -> None:
        """Add the tokens that masks leave no choice about, in the budget and the free memory that is left.

        The draws are the same without: at each of these positions the mask allows one token. Where log-probabilities
        are asked for they are drawn one by one, since those of each position are needed.
        """
        for sequence in [each for each in self.rows if each.request.mask is not None]:
            request, end = sequence.request, sequence.num_computed_tokens + self.rows[sequence]
            limit = min(self.tokens_left, request.max_length - end - 1)
            waits = end != sequence.num_tokens or sequence.num_pending
            if request.mask is None or waits or limit <= 0 or request.sampling.logprobs is not None:
                continue
            if not memory.can_extend(sequence, end + 1):
                continue
            forced = request.mask.forced(sequence.index, sequence.tokens[sequence.num_prompt :])[:limit]
            if forced and memory.can_extend(sequence, end + len(forced)):
                memory.reserve(sequence, end + len(forced), [])
                self.propose(sequence, forced, is_forced=True)

    def build(
        self,
        now: float,
        number: int,
        releases: list[int],
        kv_stores: list[BlockTransfer],
        kv_loads: list[BlockTransfer],
        adapter_loads: list[AdapterLoad],
        adapter_drops: list[str],
    ) -> SubmittedStep:
        """The finished step. Its rows count as computed from now on, and block-table changes pass to the plan.

        A shared block is copied by the sibling forked from it, in the step in which that starts. So no copy's source
        is another's target, and an executor may carry the copies out in any order.
        """
        new_sequences = [_new_sequence(sequence) for sequence in self.admitted]
        copies = [copy for extra in self.extras.values() for copy in extra.copies]
        if self.shape.prefill_tokens:
            self._record_chunks(now)
        rows = [self._row(sequence, num_tokens) for sequence, num_tokens in self.rows.items()]
        plan = StepPlan(
            number,
            releases,
            new_sequences,
            copies,
            rows,
            kv_stores,
            kv_loads,
            adapter_loads,
            adapter_drops,
            self._masks,
        )
        return SubmittedStep(plan, self.rows, self.shape, now)

    def _record_chunks(self, now: float) -> None:
        rows, step_tokens = len(self.rows), self.shape.num_tokens
        for sequence, num_tokens in self.rows.items():
            if num_tokens > 1:
                extra = self.extras.get(sequence)
                tokens = num_tokens if extra is None else num_tokens - len(extra.proposals)
                if tokens > 1:
                    sequence.request.turn.chunk(tokens, rows, step_tokens, now)

    def _row(self, sequence: Sequence, num_tokens: int) -> Row:
        slot, start, tokens = sequence.slot, sequence.num_computed_tokens, sequence.tokens
        assert slot is not None, "a row belongs to a running sequence"
        end = sequence.num_computed_tokens = start + num_tokens
        token_ids = tokens[start:end]
        extra = self.extras.get(sequence) if self.extras else None
        proposals: list[int] = extra.proposals if extra is not None else _NO_PROPOSALS
        if proposals:
            token_ids += proposals
            end -= len(proposals)
        elif len(token_ids) < num_tokens:
            token_ids.append(LAST_SAMPLED)
        updates: list[BlockUpdate] = []
        if sequence.pending_updates:
            updates, sequence.pending_updates = sequence.pending_updates, updates
        request = sequence.request
        num_forced = len(proposals) if extra is not None and extra.is_forced else 0
        sample = end == len(tokens) + sequence.num_pending and request.sampling.max_tokens > 0
        if sample:
            sequence.num_pending += 1
            if request.mask is not None:
                outputs = tokens[sequence.num_prompt :]
                forced, verified = (proposals, []) if num_forced else ([], proposals)
                self._masks[slot] = request.mask.pack(sequence.index, outputs + forced, verified)
        prompt_logprobs = request.wants_prompt_logprobs and sequence.leads
        saves = extra.saves if extra is not None else []
        return Row(slot, start, token_ids, updates, sample, prompt_logprobs, len(proposals), num_forced, saves)


@dataclass(slots=True)
class SubmittedStep:
    """A step whose result is not there yet."""

    plan: StepPlan
    sequences: Collection[Sequence]  # one for each of the plan's rows, in their order
    shape: StepShape
    planned_s: float
    free_blocks: int = 0
    """KV blocks that nobody held once it was planned."""
    discarded: set[Sequence] = field(default_factory=set)
    """Sequences that stopped or were preempted since the step was planned: its results for them are dropped."""


def _new_sequence(sequence: Sequence) -> NewSequence:
    request, slot = sequence.request, sequence.slot
    assert slot is not None, "an admitted sequence has a slot"
    outputs = sequence.tokens[sequence.num_prompt :]
    snapshot = NO_SNAPSHOT if sequence.snapshots is None else sequence.snapshots.start
    return NewSequence(slot, request.sampling, sequence.seed, request.prompt, outputs, request.scope.adapter, snapshot)
