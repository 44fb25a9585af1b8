"""Forwarding against stepping: the same traffic is played twice, and everything that an engine holds is compared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvarn.clock.virtual import VirtualClock
from kvarn.config.engine import EngineConfig
from kvarn.costs.draws import Draws
from kvarn.costs.replica_model import Distribution
from kvarn.costs.step_times import StepTimes
from kvarn.engine import AdmissionError, EngineCore, EngineParts
from kvarn.engine.errors import ProtocolError
from kvarn.engine.fast_forward import DecodeRun, Forwarded, decode_run, fast_forward
from kvarn.engine.memory.block_inventory import BlockInventory
from kvarn.engine.plan import NewSequence, StepPlan
from kvarn.engine.step_time import FixedStepTimes, StepTimeModel
from kvarn.traffic.workload import Segment, Vocabulary
from kvarn.wire.block_names import NamedPrompt, PrefixScope, root_hash
from kvarn.wire.messages import Submit, TokenDelta
from kvarn.wire.sampling import SamplingParams, choice_seed
from kvarn.wire.sessions import SessionEvent, SessionNews, SessionTurn
from kvarn.worker.modelled import ModelledExecutor, successor
from object_state import state_of
from profiles import examples

TIMES = StepTimes(fixed_s=8e-3, prefill_token_s=5e-5, prefill_pair_s=4e-9, decode_row_s=1.1e-4, decode_token_s=5.3e-7)
NOISE = Distribution(values=(1e-4, 3e-4, 3.3e-4, 7e-4, 0.02))

Token = tuple[float, str, int, int]
"""When it came, and of which choice of which request."""


class NotedExecutor(ModelledExecutor):
    """Keeps the plans that it was given."""

    def __init__(self, *args: object, **keywords: object) -> None:
        super().__init__(*args, **keywords)
        self.plans: list[StepPlan] = []

    def shapes(self) -> list[object]:
        """The plans, but for tokens."""
        return [
            (plan.step, [(row.slot, row.start, len(row.token_ids), row.block_updates) for row in plan.rows])
            for plan in self.plans
        ]

    def submit(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        super().submit(plan)


class Engine:
    """An engine on a clock of its own."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        learns: bool = False,
        seconds: object = TIMES,
        overhead: Distribution | None = None,
        max_in_flight: int = 1,
        next_token: object = successor,
        **config: object,
    ) -> None:
        self.clock = VirtualClock(3.0)
        self.executor = NotedExecutor(
            seconds,
            self.clock,
            next_token,
            num_blocks=num_blocks,
            max_in_flight=max_in_flight,
        )
        self.overheads = Draws(overhead or Distribution(), seed=7)
        step_time = StepTimeModel.knowing(TIMES) if learns else FixedStepTimes(TIMES)
        self.core = EngineCore(EngineParts(self.executor, EngineConfig(**config), step_time=step_time), self.clock.now)
        self.told = BlockInventory()
        self.core.cache.report_to(self.told)
        self.tokens: list[Token] = []

    def add(self, message: Submit) -> str:
        try:
            self.core.add(message)
        except AdmissionError as error:
            return str(error)
        return ""

    def step(self) -> list[TokenDelta]:
        output = self.core.step()
        self._note(output.deltas, self.clock.now())
        return [*output.deltas, *output.refused]

    def pause(self) -> None:
        """What passes between a step and the next."""
        self.clock.move_to(self.clock.now() + self.overheads.take())

    def take(self, forwarded: Forwarded) -> None:
        for place, end in enumerate(forwarded.ends_s):
            for delta in forwarded.deltas:
                self.tokens.append((end, delta.request_id, delta.index, delta.token_ids[place]))

    def _note(self, deltas: list[TokenDelta], now: float) -> None:
        self.tokens += [(now, each.request_id, each.index, token) for each in deltas for token in each.token_ids]

    def state(self) -> list[object]:
        core = [self.core.scheduler, self.core.step_log, self.core.stats(), self.core._recorder, self.core._admission]
        return state_of([*core, self.core._requests, self.told, self.clock], without=(NotedExecutor,))


class Pair:
    """One engine that is forwarded, and one that is stepped beside it."""

    def __init__(self, **settings: object) -> None:
        self.forwarded, self.stepped = Engine(**settings), Engine(**settings)
        self.num_forwarded = 0

    def both(self, action: str, *arguments: object) -> None:
        outcomes = [getattr(each.core, action)(*arguments) for each in (self.forwarded, self.stepped)]
        assert outcomes[0] == outcomes[1]

    def add(self, message: Submit) -> None:
        assert self.forwarded.add(message) == self.stepped.add(message)

    def play(self, until_s: float = math.inf, cuts: tuple[float, ...] = ()) -> None:
        """Go on until no step begins before `until_s`. Runs are taken in parts: `cuts` of the time that is left."""
        while self.forwarded.core.has_work() and self.forwarded.clock.now() < until_s:
            run = decode_run(self.forwarded.core, until_s, self.forwarded.overheads)
            if run is None:
                assert self.forwarded.step() == self.stepped.step()
            else:
                begins_s, ends_s, taken = self.forwarded.clock.now(), run.ends_s, 0
                for moment in [*(begins_s + cut * (ends_s - begins_s) for cut in cuts), math.inf]:
                    taken += self._take(run, min(until_s, moment), is_first=not taken)
                self.compare()
            for engine in (self.forwarded, self.stepped):
                engine.pause()
        for engine in (self.forwarded, self.stepped):
            if until_s < math.inf:
                engine.clock.move_to(until_s)

    def _take(self, run: DecodeRun, until_s: float, *, is_first: bool) -> int:
        planned_s = run.steps.planned_s[run.taken :]
        forwarded = run.take(until_s) if run.is_current else None
        if forwarded is None:
            return 0
        self.forwarded.take(forwarded)
        steps = len(forwarded.ends_s)
        self.num_forwarded += steps
        for place, begins_s in enumerate(planned_s[:steps]):
            if place or not is_first:
                self.stepped.pause()
            assert self.stepped.clock.now() == begins_s < until_s
            self.stepped.step()
        return steps

    def compare(self) -> None:
        assert self.forwarded.clock.now() == self.stepped.clock.now()
        forwarded, stepped = self.forwarded.state(), self.stepped.state()
        for place, (ours, theirs) in enumerate(zip(forwarded, stepped, strict=True)):
            assert ours == theirs, (forwarded[place - 20 : place + 3], stepped[place - 20 : place + 3])

    def finish(self) -> None:
        self.compare()
        for engine in (self.forwarded, self.stepped):
            engine.core.check_integrity()
        assert self.forwarded.tokens == self.stepped.tokens
        plans = {plan.step: plan for plan in self.stepped.executor.plans}
        assert all(plan == plans[plan.step] for plan in self.forwarded.executor.plans)


def submit(number: int = 0, prompt: int = 20, max_tokens: int = 40, **fields: object) -> Submit:
    sampling = SamplingParams(seed=number, max_tokens=max_tokens)
    tokens = [(number * 7 + place) % 50 for place in range(prompt)]
    return Submit(**{"request_id": f"r{number}", "prompt_token_ids": tokens, "sampling": sampling} | fields)


@dataclass(frozen=True)
class Arrival:
    gap_s: float
    stem: int
    shared: int
    own: int
    max_tokens: int
    n: int
    tenant: str
    weight: float
    priority: int
    stops: tuple[int, ...]
    logprobs: int | None
    ttft_s: float | None
    tpot_s: float | None
    session: SessionTurn | None

    def message(self, number: int) -> Submit:
        stem = [(self.stem * 7 + i * i) % 50 for i in range(self.shared)]
        return Submit(
            request_id=f"r{number}",
            prompt_token_ids=stem + [(self.own * 11 + i) % 50 for i in range(self.own)],
            sampling=SamplingParams(
                seed=number,
                max_tokens=self.max_tokens,
                n=self.n,
                stop_token_ids=list(self.stops),
                logprobs=self.logprobs,
                min_tokens=min(3, self.max_tokens),
            ),
            tenant=self.tenant,
            weight=self.weight,
            priority=self.priority,
            ttft_left_s=self.ttft_s,
            tpot_target_s=self.tpot_s,
            session=self.session,
        )


sessions = st.builds(
    SessionTurn,
    id=st.sampled_from([b"1", b"2"]),
    tree=st.sampled_from([b"", b"1"]),
    keep_s=st.sampled_from([0.0, 0.3, 60.0]),
    is_last=st.sampled_from([False, False, True]),
)
arrivals = st.builds(
    Arrival,
    gap_s=st.sampled_from([1.5, 0.4, 0.2, 0.05, 0.001, 0.0]),
    stem=st.integers(0, 1),
    shared=st.integers(0, 70),
    own=st.integers(1, 40),
    max_tokens=st.one_of(st.integers(20, 130), st.integers(20, 130), st.integers(0, 5)),
    n=st.sampled_from([1, 1, 1, 1, 3]),
    tenant=st.sampled_from(["x", "y", "z"]),
    weight=st.sampled_from([1.0, 3.0, 0.7]),
    priority=st.sampled_from([0, 0, 0, 1, 10]),
    stops=st.sampled_from([(), (), (), (330, 345), (310,)]),
    logprobs=st.sampled_from([None] * 9 + [2]),
    ttft_s=st.sampled_from([None, None, 0.1, 1.0]),
    tpot_s=st.sampled_from([None, None, 0.01, 0.05]),
    session=st.none() | sessions,
)
news = st.builds(
    SessionNews,
    session=st.sampled_from([b"1", b"2"]),
    event=st.sampled_from(SessionEvent),
    turn=st.integers(0, 12).map("r{}".format),
)
events = st.lists(st.one_of(arrivals, arrivals, arrivals, news, st.integers(0, 12)), min_size=3, max_size=14)
engines = st.fixed_dictionaries(
    {
        "num_blocks": st.sampled_from([20, 40, 300]),
        "learns": st.booleans(),
        "overhead": st.sampled_from([Distribution(), Distribution(values=(0.0013,)), NOISE]),
        "max_num_seqs": st.sampled_from([2, 5, 64]),
        "token_budget": st.sampled_from([5, 64, 256]),
        "prefix_cache": st.sampled_from([True, True, True, False]),
        "priority_ageing_s": st.sampled_from([0.05, 30.0]),
        "tpot_target_ms": st.sampled_from([1.0, 15.0, 200.0]),
        "output_token_weight": st.sampled_from([2.0, 0.3]),
        "max_wait_s": st.sampled_from([None, 0.5]),
    }
)


@settings(
    max_examples=examples(240),
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(engines, events, st.sampled_from([(), (0.5,), (0.1, 0.1001, 0.9)]))
def test_forwarding_leaves_what_stepping_leaves(
    engine: dict[str, object], coming: list[Arrival | SessionNews | int], cuts: tuple[float, ...]
) -> None:
    pair = Pair(**engine)
    for number, event in enumerate(coming):
        if isinstance(event, Arrival):
            pair.play(pair.forwarded.clock.now() + event.gap_s, cuts)
            pair.add(event.message(number))
        elif isinstance(event, SessionNews):
            pair.both("take_session_news", event)
        else:
            pair.both("abort", f"r{event}")
    pair.play(cuts=cuts)
    pair.finish()


def test_an_answer_is_forwarded_to_the_step_before_its_last() -> None:
    pair = Pair(overhead=NOISE)
    pair.add(submit(max_tokens=100))
    pair.play()
    pair.finish()
    assert pair.num_forwarded == 98, "all but the first step and the last"
    assert len(pair.forwarded.executor.plans) == 2


def test_a_stop_token_ends_the_run_before_it() -> None:
    pair = Pair()
    sampling = SamplingParams(seed=1, max_tokens=100, stop_token_ids=[360], min_tokens=2)
    pair.add(submit(prompt_token_ids=[310], sampling=sampling))
    pair.play()
    pair.finish()
    assert [token for *_, token in pair.forwarded.tokens] == [*range(311, 361)]
    assert pair.num_forwarded == 48


def test_steps_are_taken_that_begin_before_the_moment_and_to_the_first_that_ends_when_something_is_due() -> None:
    engine = Engine()
    engine.add(submit())
    engine.step()
    run = decode_run(engine.core)
    assert run is not None
    planned_s, ends_s = run.steps.planned_s, run.steps.ends_s
    assert planned_s[1:] == ends_s[:-1]
    assert run.take(until_s=planned_s[0]) is None
    taken = run.take(until_s=planned_s[2])
    assert taken is not None
    assert taken.ends_s == ends_s[:2]
    assert engine.clock.now() == ends_s[1]
    until_due = run.take(due_s=(ends_s[3] + ends_s[4]) / 2)
    assert until_due is not None
    assert until_due.ends_s == ends_s[2:5]
    assert (run.taken, len(run.steps)) == (5, 38)


@pytest.mark.parametrize("learns", [False, True])
def test_blocks_that_decoding_evicts_are_those_that_stepping_evicts(learns: bool) -> None:
    pair = Pair(num_blocks=40, learns=learns, overhead=NOISE)
    for number in range(6):
        session = SessionTurn(id=b"%d" % number, keep_s=10.0 * (number % 3))
        pair.add(submit(number, prompt=60, max_tokens=30, session=session if number % 3 else None))
        pair.play()
        pair.play(pair.forwarded.clock.now() + number)
    evictions = pair.forwarded.core.cache.evictions
    pair.add(submit(7, prompt=16, max_tokens=400))
    pair.play(cuts=(0.3,))
    pair.finish()
    assert pair.forwarded.core.cache.evictions > evictions + 10


def test_choices_that_draw_the_same_share_their_blocks() -> None:
    pair = Pair()
    pair.add(submit(prompt=20, sampling=SamplingParams(seed=1, max_tokens=100, n=3)))
    for cut in range(1, 60):
        pair.play(3.0 + 0.02 * cut)
    pair.play()
    pair.finish()


def test_memory_that_may_run_out_is_left_to_steps() -> None:
    pair = Pair(num_blocks=12)
    for number in range(3):
        pair.add(submit(number, prompt=30, max_tokens=100))
    pair.play()
    pair.finish()
    assert pair.forwarded.core.stats().preemptions_total > 0
    assert pair.num_forwarded > 60


def test_a_run_is_void_once_something_else_has_happened() -> None:
    for happens in (
        lambda engine: engine.add(submit(1)),
        lambda engine: engine.step(),
        lambda engine: engine.core.abort("r0"),
    ):
        engine = Engine()
        engine.add(submit())
        engine.step()
        run = decode_run(engine.core)
        assert run is not None and run.is_current
        happens(engine)
        assert not run.is_current
        with pytest.raises(ProtocolError, match="time another"):
            run.take()


@pytest.mark.parametrize(
    "engine",
    [
        partial(Engine, max_in_flight=2),
        partial(Engine, num_blocks=4, max_num_seqs=1),
    ],
    ids=["plans ahead", "a second one waits"],
)
def test_an_engine_is_not_forwarded_where_its_next_steps_may_do_more_than_decode(engine: partial[Engine]) -> None:
    made = engine()
    made.add(submit(0, max_tokens=20))
    made.add(submit(1, max_tokens=20))
    made.step()
    made.step()
    assert fast_forward(made.core) is None


def test_an_engine_on_the_machines_clock_is_not_forwarded() -> None:
    engine = EngineCore(EngineParts(ModelledExecutor(), EngineConfig()), VirtualClock().now)
    engine.add(submit())
    engine.step()
    assert fast_forward(engine) is None


def test_tokens_and_times_of_any_function_are_forwarded() -> None:
    pair = Pair(
        seconds=lambda shape: 0.01 + 1e-5 * math.sqrt(shape.decode_context),
        next_token=lambda token, sequence: (token * 31 + len(sequence.prompt_token_ids)) % 997,
    )
    pair.add(submit(prompt=40, max_tokens=60))
    pair.play()
    pair.finish()
    assert pair.num_forwarded == 58


VOCABULARY = Vocabulary(0, 1 << 20)


def recipes(number: int) -> tuple[str, list[Segment], Segment]:
    """Tenant, prompt and answer of the turns of five conversations, which begin with one of two system prompts."""
    conversation, turn = number % 5, number // 5
    segments = [Segment(key=conversation % 2, length=100)]
    for each in range(turn):
        segments += [
            Segment(key=100 * conversation + 2 * each + 10, length=13 + 7 * each),
            Segment(key=100 * conversation + 2 * each + 11, length=20 + each),
        ]
    segments.append(Segment(key=100 * conversation + 2 * turn + 10, length=13 + 7 * turn))
    return f"t{conversation // 3}", segments, Segment(key=100 * conversation + 2 * turn + 11, length=20 + turn)


@pytest.mark.parametrize("num_blocks", [60, 400])
def test_prompts_by_the_names_of_their_blocks_share_and_cost_what_tokens_do(num_blocks: int) -> None:
    answers: dict[int, list[int]] = {}

    def following(_last: int, sequence: NewSequence) -> int:
        """The answer's token: its place is in no plan, so it is counted here."""
        return answers[sequence.seed].pop(0)

    outcomes = []
    for is_named in (False, True):
        engine = Engine(num_blocks=num_blocks, next_token=successor if is_named else following)
        for number in range(30):
            tenant, segments, answer = recipes(number)
            prompt = [token for segment in segments for token in segment.token_ids(VOCABULARY, 0)]
            if is_named:
                pairs = [(each.key, each.length) for each in segments]
                prompt = NamedPrompt.of(root_hash(PrefixScope(tenant)), pairs, (answer.key, answer.length))
            message = submit(
                number,
                prompt_token_ids=prompt,
                max_tokens=answer.length,
                tenant=tenant,
                session=SessionTurn(id=b"%d" % (number % 5)) if number % 2 else None,
            )
            answers[choice_seed(number, 0)] = answer.token_ids(VOCABULARY, 0)
            engine.add(message)
            while engine.core.has_work() and (number % 3 or engine.clock.now() < 3 + 0.2 * number):
                engine.step()
            engine.core.check_integrity()
        stats = engine.core.stats()
        times = [(now, request_id) for now, request_id, _, _ in engine.tokens]
        outcomes.append((times, stats, engine.executor.shapes()))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1].cached_tokens_total > 1000


def test_a_prompt_without_the_names_of_its_answers_blocks_is_refused() -> None:
    prompt = NamedPrompt.of(root_hash(PrefixScope()), [(1, 40)], answer=(2, 10))
    engine = Engine()
    assert engine.add(submit(prompt_token_ids=prompt, max_tokens=8 + 16)) == ""
    assert "names of all its blocks" in engine.add(submit(1, prompt_token_ids=prompt, max_tokens=8 + 16 + 1))
