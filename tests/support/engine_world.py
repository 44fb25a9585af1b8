"""A world for the engine: a clock, and an executor that knows what must stand in every KV slot it reads."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import cycle

from engine_adapters import ScriptedAdapters
from guesses import FreeProposer
from kvarn.config.disaggregation import DisaggregationConfig
from kvarn.config.engine import EngineConfig
from kvarn.config.speculation import SpeculationConfig
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.engine.errors import AdmissionError
from kvarn.engine.memory.remote_prefill import PrefillPeer
from kvarn.engine.plan import LAST_SAMPLED, NO_SNAPSHOT, KVConnector, NewSequence, Row, RowResult, StepPlan, StepResult
from kvarn.engine.proposals.proposer import Proposer
from kvarn.engine.request import Sequence as EngineSequence
from kvarn.engine.request import TokenMask
from kvarn.engine.step_time import StepTimeModel
from kvarn.observe.timeline import EngineEventKind, engine_events, spent_by_phase
from kvarn.wire.messages import FinishReason, PositionLogprobs, Submit, TokenDelta, TokenLogprob
from kvarn.wire.sampling import SamplingParams, choice_seed

BLOCK = 16
BLOCK_BYTES = BLOCK * 8
EVERY_BIT = (1 << 64) - 1
VOCABULARY = 50


def link(chain: int, token: int) -> int:
    """Stands for the KV of a token: it depends on all tokens before it."""
    return hash((chain, token, 17)) & EVERY_BIT


def chain_of(tokens: Iterable[int], adapter: str = "") -> int:
    chain = hash(tuple(adapter.encode()))
    for token in tokens:
        chain = link(chain, token)
    return chain


def draw(chain: int, seed: int, position: int) -> int:
    """The 'model': the next token is a function of all tokens before it, the seed and the position."""
    return hash((chain, seed, position)) % VOCABULARY


def allowed(drawn: int, mask: bytes) -> int:
    """The token drawn or, where the mask forbids it, the next one that it allows."""
    tokens = ((drawn + i) % VOCABULARY for i in range(VOCABULARY))
    return next(token for token in tokens if mask[token // 8] >> token % 8 & 1)


def answer_alone(
    message: Submit, index: int = 0, max_context: int = 10_000, mask: TokenMask | None = None
) -> list[int]:
    """What a choice must answer, computed by a plain loop without an engine."""
    sampling, tokens = message.sampling, list(message.prompt_token_ids)
    seed, chain = choice_seed(sampling.seed, index), chain_of(tokens, message.adapter)
    outputs: list[int] = []
    while len(outputs) < sampling.max_tokens and len(tokens) < max_context:
        token = draw(chain, seed, len(tokens))
        if mask is not None:
            token = allowed(token, mask.pack(index, outputs, [])[0])
        tokens.append(token)
        outputs.append(token)
        chain = link(chain, token)
        if token in sampling.stop_token_ids and len(outputs) >= sampling.min_tokens:
            break
    return outputs


@dataclass
class SlotState:
    """What an executor keeps of a running sequence."""

    new: NewSequence
    tokens: list[int]
    chains: list[int] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    state: int | None = None
    """The recurrent states: the chain of all tokens that were computed."""

    def chain(self, position: int) -> int:
        """Expected contents of a position."""
        if not self.chains:
            self.chains.append(chain_of([], self.new.adapter))
        while len(self.chains) <= position + 1:
            self.chains.append(link(self.chains[-1], self.tokens[len(self.chains) - 1]))
        return self.chains[position + 1]


class CheckingExecutor:
    """Runs plans on symbolic KV and fails at the first read of a slot that holds anything else than it must.

    A plan runs when its result is collected: with `max_in_flight` 2, after the next was planned.
    """

    def __init__(
        self,
        num_blocks: int,
        max_context_length: int = 4096,
        seconds: Callable[[StepPlan], float] | None = None,
        max_in_flight: int = 1,
        connector: KVConnector | None = None,
        adapters: ScriptedAdapters | None = None,
        num_snapshots: int | None = None,
    ) -> None:
        self.adapters = adapters
        self.snapshots: list[int | None] | None = None if num_snapshots is None else [None] * num_snapshots
        self.num_blocks = num_blocks
        self.max_context_length = max_context_length
        self.max_in_flight = max_in_flight
        self.kv: list[list[int | None]] = [[None] * BLOCK for _ in range(num_blocks)]
        self.slots: dict[int, SlotState] = {}
        self.plans: list[StepPlan] = []
        self._submitted: deque[StepPlan] = deque()
        self._seconds = seconds or (lambda plan: 0.01)
        self._connector = connector

    def submit(self, plan: StepPlan) -> None:
        self._submitted.append(plan)
        assert len(self._submitted) <= self.max_in_flight, "too many plans in flight"

    def collect(self) -> StepResult:
        return self.execute(self._submitted.popleft())

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        for slot in plan.releases:
            del self.slots[slot]
        for adapter in plan.adapter_drops:
            self.adapters.drop(adapter)
        for new in plan.new_sequences:
            assert new.slot not in self.slots, "a slot is taken twice"
            self.slots[new.slot] = state = SlotState(new, [*new.prompt_token_ids, *new.output_token_ids])
            if self.snapshots is not None:
                state.state = state.chain(-1) if new.snapshot == NO_SNAPSHOT else self.snapshots[new.snapshot]
        self._transfer(plan)
        self._copy(plan)
        for load in plan.adapter_loads:
            self.adapters.write(load, self.kv)
        self._update_tables(plan)
        self._write(plan)
        results = [self._row_result(row, plan.masks.get(row.slot)) for row in plan.rows]
        return StepResult(plan.step, results, self._seconds(plan))

    def shutdown(self) -> None:
        self.slots.clear()

    def _transfer(self, plan: StepPlan) -> None:
        for transfer in plan.kv_stores:
            held = [0 if link is None else link for link in self.kv[transfer.block]]
            self._connector.store([transfer], [[memoryview(array("Q", held)).cast("B")]])
        loaded = [array("Q", bytes(BLOCK_BYTES)) for _ in plan.kv_loads]
        if loaded:
            self._connector.load(plan.kv_loads, [[memoryview(held).cast("B")] for held in loaded])
        for transfer, held in zip(plan.kv_loads, loaded, strict=True):
            self.kv[transfer.block] = list(held)

    def _copy(self, plan: StepPlan) -> None:
        """All at once and one after the other must come to the same."""
        at_once = {copy.target: list(self.kv[copy.source]) for copy in plan.copies}
        assert len(at_once) == len(plan.copies), "two copies have one target"
        for copy in plan.copies:
            self.kv[copy.target] = list(self.kv[copy.source])
        for target, contents in at_once.items():
            assert self.kv[target] == contents, "copies depend on their order"

    def _update_tables(self, plan: StepPlan) -> None:
        for row in plan.rows:
            table = self.slots[row.slot].table
            for update in row.block_updates:
                assert update.index <= len(table), "a block table has a hole"
                table[update.index : update.index + 1] = [update.block]

    def _write(self, plan: StepPlan) -> None:
        written: set[tuple[int, int]] = set()
        saved = [save.snapshot for row in plan.rows for save in row.state_saves]
        assert len(set(saved)) == len(saved), "two rows write one snapshot"
        for row in plan.rows:
            state = self.slots[row.slot]
            assert row.token_ids, "an empty row"
            token_ids = [state.tokens[-1] if token == LAST_SAMPLED else token for token in row.token_ids]
            known = row.start + len(token_ids) - row.num_proposals
            assert token_ids[: known - row.start] == state.tokens[row.start : known]
            chain = state.chain(row.start - 1)
            assert self.snapshots is None or state.state == chain, f"slot {row.slot} goes on from foreign states"
            saves = {row.start + save.num_tokens: save.snapshot for save in row.state_saves}
            for position, token in enumerate(token_ids, start=row.start):
                place = (state.table[position // BLOCK], position % BLOCK)
                assert place not in written, "two rows write one slot"
                written.add(place)
                chain = link(chain, token)
                self.kv[place[0]][place[1]] = chain
                if position + 1 in saves:
                    self.snapshots[saves.pop(position + 1)] = chain
            assert not saves, "a snapshot is taken outside its row"
            state.state = chain

    def _row_result(self, row: Row, masks: tuple[bytes, ...] | None) -> RowResult:
        state = self.slots[row.slot]
        if self.adapters is not None:
            self.adapters.check(state.new.adapter, self.kv)
        end = row.start + len(row.token_ids) - row.num_proposals
        for position in range(end):
            held = self.kv[state.table[position // BLOCK]][position % BLOCK]
            assert held == state.chain(position), f"slot {row.slot} reads foreign KV at position {position}"
        assert not row.sample or end == len(state.tokens), "a token is drawn before all known ones are computed"
        drawn = self._draw(row, state, masks) if row.sample else []
        prompt = state.new.prompt_token_ids
        logprobs = None
        if row.prompt_logprobs:
            logprobs = [position_logprobs(prompt[p]) for p in range(row.start + 1, min(end + 1, len(prompt)))]
        own = [position_logprobs(token) for token in drawn] if state.new.sampling.logprobs is not None else None
        return RowResult(row.slot, drawn, own, logprobs)

    def _draw(self, row: Row, state: SlotState, masks: tuple[bytes, ...] | None) -> list[int]:
        """A token after all that are known, then one after each proposal as long as they were right."""
        proposals = row.token_ids[len(row.token_ids) - row.num_proposals :]
        drawn = proposals[: row.num_forced]
        state.tokens += drawn
        while drawn == proposals[: len(drawn)] and len(drawn) <= len(proposals):
            length = len(state.tokens)
            token = draw(state.chain(length - 1), state.new.seed, length)
            if masks is not None:
                token = allowed(token, masks[len(drawn) - row.num_forced])
            state.tokens.append(token)
            drawn.append(token)
        return drawn


def position_logprobs(token: int) -> PositionLogprobs:
    return PositionLogprobs.of(TokenLogprob(token, -1.0, 1), [])


class World:
    """An engine with its clock and executor; collects what the clients hear."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        max_context_length: int = 4096,
        seconds: Callable[[StepPlan], float] | None = None,
        recount_every: int = 1,
        step_time: StepTimeModel | None = None,
        max_in_flight: int = 1,
        connector: KVConnector | None = None,
        proposals: Sequence[tuple[int, int]] = (),
        proposer: Proposer | None = None,
        adaptive: bool = False,
        masks: Callable[[Submit], TokenMask | None] = lambda message: None,
        adapters: ScriptedAdapters | None = None,
        micro_batches: int = 1,
        num_snapshots: int | None = None,
        prefill_peer: PrefillPeer | None = None,
        disaggregation: DisaggregationConfig | None = None,
        **config: object,
    ) -> None:
        self.now = 0.0
        self.recount_every = recount_every
        self.executor = CheckingExecutor(
            num_blocks, max_context_length, seconds, max_in_flight, connector, adapters, num_snapshots
        )
        self.masks = masks
        self.proposer = proposer or (ScriptedProposer(proposals) if proposals else None)
        self.config = EngineConfig(**config)
        self.engine = EngineCore(
            EngineParts(
                self.executor,
                self.config,
                step_time=step_time or StepTimeModel(),
                proposer=self.proposer,
                speculation=SpeculationConfig(adaptive=adaptive),
                masks=masks,
                connector=connector,
                adapters=adapters,
                micro_batches=micro_batches,
                num_snapshots=num_snapshots,
                prefill_peer=prefill_peer,
                disaggregation=disaggregation,
            ),
            lambda: self.now,
        )
        self.messages: dict[str, Submit] = {}
        self.deltas: dict[str, list[TokenDelta]] = {}
        self.refused: dict[str, str] = {}

    def submit(self, request_id: str, prompt: list[int] | int, *, tenant: str = "", **fields: object) -> bool:
        """Sends a request; a number stands for a prompt of that many tokens of its own. False if refused."""
        names = ("weight", "priority", "cache_salt", "adapter", "ttft_left_s", "tpot_target_s", "session", "goes_on")
        of_request = {name: fields.pop(name) for name in names if name in fields}
        if isinstance(prompt, int):
            prompt = [(sum(request_id.encode()) * 31 + i * i) % VOCABULARY for i in range(prompt)]
        sampling = SamplingParams(**{"seed": 7, "max_tokens": 8, **fields})
        message = Submit(request_id=request_id, prompt_token_ids=prompt, sampling=sampling, tenant=tenant, **of_request)
        try:
            self.engine.add(message)
        except AdmissionError as error:
            self.refused[request_id] = error.reason.value
            return False
        self.messages[request_id] = message
        self.deltas[request_id] = []
        return True

    def step(self, seconds: float = 0.01) -> list[TokenDelta]:
        """One step; the books are recounted after it (or after every so many, in long runs)."""
        output = self.engine.step()
        self.now += seconds
        for delta in output.deltas:
            self.deltas[delta.request_id].append(delta)
        for refused in output.refused:
            self.refused[refused.request_id] = refused.reason.value
        if len(self.executor.plans) % self.recount_every == 0:
            self.engine.check_integrity()
        return output.deltas

    def run(self, max_steps: int = 10_000) -> int:
        """Steps until nothing is left; returns how many that took."""
        for count in range(max_steps):
            if not self.engine.has_work():
                return count
            self.step()
        raise AssertionError(f"not done after {max_steps} steps")

    def output(self, request_id: str, index: int = 0) -> list[int]:
        return [token for delta in self.deltas[request_id] if delta.index == index for token in delta.token_ids]

    def finish_reason(self, request_id: str, index: int = 0) -> FinishReason | None:
        reasons = [d.finish_reason for d in self.deltas[request_id] if d.index == index and d.finish_reason]
        assert len(reasons) <= 1, "a choice ended twice"
        return reasons[0] if reasons else None

    def cached_tokens(self, request_id: str) -> int:
        return self.deltas[request_id][0].cached_tokens

    def assert_answered(self, request_id: str) -> None:
        """Each choice ended with exactly the tokens it would have drawn alone."""
        message = self.messages[request_id]
        for index in range(message.sampling.n):
            assert self.finish_reason(request_id, index) is not None, f"{request_id}/{index} never ended"
            expected = answer_alone(message, index, self.executor.max_context_length, self.masks(message))
            assert self.output(request_id, index) == expected, f"{request_id}/{index} drew other tokens"
        told = self.events(request_id)
        finished = next(each for each in engine_events(told) if each.kind is EngineEventKind.FINISHED)
        assert sum(spent_by_phase(told).values()) == finished.at_us, f"phases of {request_id} do not sum"

    def assert_all_answered(self) -> None:
        """The same of all requests that were taken."""
        for request_id in self.messages.keys() - self.refused.keys():
            self.assert_answered(request_id)

    def events(self, request_id: str) -> list[int]:
        """What the engine told of a request's time."""
        return [number for delta in self.deltas[request_id] for number in delta.events or ()]


class ScriptedProposer(FreeProposer):
    """Proposes as many tokens as its script says next, of which the one at the place that it says is wrong."""

    grades = (0.5,)
    call_s = 0.0
    overhead_s = 0.0

    def __init__(self, script: Sequence[tuple[int, int]], is_free: bool = True) -> None:
        super().__init__()
        self.is_free = is_free
        self.forgotten: set[EngineSequence] = set()
        self._script = cycle(script)

    def forget(self, sequence: EngineSequence) -> None:
        assert sequence not in self.forgotten, "a sequence ended twice"
        self.forgotten.add(sequence)

    def guess(self, sequence: EngineSequence, limit: int) -> list[int]:
        length, wrong = next(self._script)
        tokens, mask = list(sequence.tokens), sequence.request.mask
        chain = chain_of(tokens, sequence.request.scope.adapter)
        for place in range(min(length, limit)):
            token = draw(chain, sequence.seed, len(tokens))
            if mask is not None:
                token = allowed(token, mask.pack(sequence.index, tokens[sequence.num_prompt :], [])[0])
            tokens.append((token + (place == wrong)) % VOCABULARY)
            chain = link(chain, tokens[-1])
        return tokens[len(sequence.tokens) :]
