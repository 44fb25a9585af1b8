"""A world for the engine: a clock, and an executor that knows what must stand in every KV slot it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from kvarn.config.schema import EngineConfig
from kvarn.engine import AdmissionError, EngineCore
from kvarn.engine.plan import NewSequence, Row, RowResult, StepPlan, StepResult
from kvarn.engine.step_time import StepTimeModel
from kvarn.wire.messages import FinishReason, PositionLogprobs, Submit, TokenDelta, TokenLogprob
from kvarn.wire.sampling import SamplingParams, choice_seed

BLOCK = 16
VOCABULARY = 50


def link(chain: int, token: int) -> int:
    """Stands for the KV of a token: it depends on all tokens before it."""
    return hash((chain, token, 17))


def chain_of(tokens: Iterable[int], adapter: str = "") -> int:
    chain = hash(tuple(adapter.encode()))
    for token in tokens:
        chain = link(chain, token)
    return chain


def draw(chain: int, seed: int, position: int) -> int:
    """The 'model': the next token is a function of all tokens before it, the seed and the position."""
    return hash((chain, seed, position)) % VOCABULARY


def answer_alone(message: Submit, index: int = 0, max_context: int = 10_000) -> list[int]:
    """What a choice must answer, computed by a plain loop without an engine."""
    sampling, tokens = message.sampling, list(message.prompt_token_ids)
    seed, chain = choice_seed(sampling.seed, index), chain_of(tokens, message.adapter)
    outputs: list[int] = []
    while len(outputs) < sampling.max_tokens and len(tokens) < max_context:
        token = draw(chain, seed, len(tokens))
        tokens.append(token)
        outputs.append(token)
        chain = link(chain, token)
        if token in sampling.stop_token_ids and len(outputs) >= sampling.min_tokens:
            break
    return outputs


@dataclass
class SlotState:
    """What an executor keeps of a running sequence."""

    admission: NewSequence
    tokens: list[int]
    chains: list[int] = field(default_factory=list)
    table: list[int] = field(default_factory=list)

    def chain(self, position: int) -> int:
        """Expected contents of a position."""
        if not self.chains:
            self.chains.append(chain_of([], self.admission.adapter))
        while len(self.chains) <= position + 1:
            self.chains.append(link(self.chains[-1], self.tokens[len(self.chains) - 1]))
        return self.chains[position + 1]


class CheckingExecutor:
    """Runs plans on symbolic KV and fails at the first read of a slot that holds anything else than it must."""

    def __init__(
        self, num_blocks: int, max_context_length: int = 4096, seconds: Callable[[StepPlan], float] | None = None
    ) -> None:
        self.num_blocks = num_blocks
        self.max_context_length = max_context_length
        self.kv: list[list[int | None]] = [[None] * BLOCK for _ in range(num_blocks)]
        self.slots: dict[int, SlotState] = {}
        self.plans: list[StepPlan] = []
        self._seconds = seconds or (lambda plan: 0.01)

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        for slot in plan.releases:
            del self.slots[slot]
        for admission in plan.admissions:
            assert admission.slot not in self.slots, "a slot is admitted twice"
            tokens = [*admission.prompt_token_ids, *admission.output_token_ids]
            self.slots[admission.slot] = SlotState(admission, tokens)
        self._copy(plan)
        self._update_tables(plan)
        self._write(plan)
        return StepResult(plan.step, [self._result(row) for row in plan.rows], self._seconds(plan))

    def shutdown(self) -> None:
        self.slots.clear()

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
        for row in plan.rows:
            state = self.slots[row.slot]
            end = row.start + len(row.token_ids)
            assert row.token_ids, "an empty row"
            assert row.token_ids == state.tokens[row.start : end]
            for position in range(row.start, end):
                place = (state.table[position // BLOCK], position % BLOCK)
                assert place not in written, "two rows write one slot"
                written.add(place)
                self.kv[place[0]][place[1]] = state.chain(position)

    def _result(self, row: Row) -> RowResult:
        state = self.slots[row.slot]
        end = row.start + len(row.token_ids)
        for position in range(end):
            held = self.kv[state.table[position // BLOCK]][position % BLOCK]
            assert held == state.chain(position), f"slot {row.slot} reads foreign KV at position {position}"
        assert not row.sample or end == len(state.tokens), "a token is drawn before all known ones are computed"
        drawn = [draw(state.chain(end - 1), state.admission.seed, end)] if row.sample else []
        state.tokens.extend(drawn)
        prompt = state.admission.prompt_token_ids
        logprobs = None
        if row.prompt_logprobs:
            logprobs = [position_logprobs(prompt[p]) for p in range(row.start + 1, min(end + 1, len(prompt)))]
        own = [position_logprobs(token) for token in drawn] if state.admission.sampling.logprobs is not None else None
        return RowResult(row.slot, drawn, own, logprobs)


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
        **config: object,
    ) -> None:
        self.now = 0.0
        self.recount_every = recount_every
        self.executor = CheckingExecutor(num_blocks, max_context_length, seconds)
        self.config = EngineConfig(**config)
        self.engine = EngineCore(self.executor, self.config, lambda: self.now, step_time=step_time)
        self.messages: dict[str, Submit] = {}
        self.deltas: dict[str, list[TokenDelta]] = {}
        self.refused: dict[str, str] = {}

    def submit(self, request_id: str, prompt: list[int] | int, *, tenant: str = "", **fields: object) -> bool:
        """Sends a request; a number stands for a prompt of that many tokens of its own. False if refused."""
        names = ("weight", "priority", "cache_salt", "adapter")
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
            expected = answer_alone(message, index, self.executor.max_context_length)
            assert self.output(request_id, index) == expected, f"{request_id}/{index} drew other tokens"


@pytest.fixture(scope="session")
def make_world() -> type[World]:
    """Builds a `World`; keywords are `EngineConfig` fields, `num_blocks`, `max_context_length` and `seconds`."""
    return World
