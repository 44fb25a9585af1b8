"""Forwarding against stepping: the same traffic is played twice, and everything that an engine holds is compared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forwarded_engine import NOISE, Engine, Pair, submit
from guesses import KnownAnswers
from kvarn.clock.virtual import VirtualClock
from kvarn.config.engine import EngineConfig
from kvarn.config.kv_tiers import KVTiersConfig
from kvarn.config.speculation import SpeculationConfig
from kvarn.costs.replica_model import Distribution
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.engine.errors import ProtocolError
from kvarn.engine.fast_forward import decode_run
from kvarn.simulator.host_memory import host_memory
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.wire.sessions import SessionEvent, SessionNews, SessionTurn
from kvarn.worker.modelled import ModelledExecutor
from profiles import examples
from scripted_masks import EveryThird


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


def test_an_answer_that_goes_on_elsewhere_is_stepped_to_the_last_token_that_is_known() -> None:
    """One token is left to compute after the first step, as in a decode, but it is no new one."""
    pair = Pair(token_budget=31)
    pair.add(submit(prompt=20, max_tokens=60, resume_token_ids=[list(range(300, 312))]))
    pair.play()
    pair.finish()
    assert pair.num_forwarded == 60 - 12 - 2


def test_more_answers_than_a_step_has_room_for_are_left_to_steps() -> None:
    pair = Pair(token_budget=5, num_blocks=300)
    for number in range(8):
        pair.add(submit(number, prompt=3, max_tokens=40))
    pair.play()
    pair.finish()
    assert pair.num_forwarded > 0, "once few enough are left"


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
    assert decode_run(made.core) is None


@pytest.mark.parametrize(
    "parts",
    [
        {"connector": host_memory(KVTiersConfig(host_gib=1.0), 1 << 20)},
        {"num_snapshots": 4},
        {"masks": lambda message: EveryThird()},
        {"proposer": KnownAnswers({("r0", 0): [*range(300, 340)]}, 2, 3), "speculation": SpeculationConfig()},
        {"micro_batches": 2},
    ],
    ids=["tiers", "snapshots", "masks", "proposals", "pipeline"],
)
def test_an_engine_with_more_parts_is_not_forwarded(parts: dict[str, Any]) -> None:
    for more in ({}, parts):
        clock = VirtualClock()
        core = EngineCore(EngineParts(ModelledExecutor(clock=clock), EngineConfig(), **more), clock.now)
        core.add(submit())
        while not core.stats().decode_rows:
            core.step()
        assert (decode_run(core) is None) == bool(more)


def test_log_probabilities_are_left_to_steps() -> None:
    engine = Engine()
    engine.add(submit(sampling=SamplingParams(seed=1, max_tokens=20, logprobs=2)))
    engine.step()
    assert decode_run(engine.core) is None


def test_an_engine_on_the_machines_clock_is_not_forwarded() -> None:
    engine = EngineCore(EngineParts(ModelledExecutor(), EngineConfig()), VirtualClock().now)
    engine.add(submit())
    engine.step()
    assert decode_run(engine) is None


def test_tokens_and_times_of_any_function_are_forwarded() -> None:
    pair = Pair(
        seconds=lambda shape: 0.01 + 1e-5 * math.sqrt(shape.decode_context),
        next_token=lambda token, sequence: (token * 31 + len(sequence.prompt_token_ids)) % 997,
    )
    pair.add(submit(prompt=40, max_tokens=60))
    pair.play()
    pair.finish()
    assert pair.num_forwarded == 58
