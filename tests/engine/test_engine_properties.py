"""Random traffic against the whole engine.

After every step the books are recounted (`World.step`), and the executor checks every KV slot that is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_adapters import ScriptedAdapters
from kv_connectors import DictConnector
from kvarn.wire.sessions import SessionEvent, SessionNews, SessionTurn
from kvarn.worker.proposers.ngram import NgramProposer
from profiles import examples
from scripted_masks import EveryThird, OftenForced
from step_notes import StepNotes

PROPERTY = settings(
    max_examples=examples(200),
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

configs = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(6, 24),
        "max_num_seqs": st.integers(1, 6),
        "token_budget": st.sampled_from([1, 3, 8, 17, 64, 256]),
        "prefix_cache": st.sampled_from([True, True, True, False]),
        "priority_ageing_s": st.sampled_from([0.05, 1.0, 30.0]),
        "tpot_target_ms": st.sampled_from([1.0, 15.0, 200.0]),
        "min_prefill_chunk": st.sampled_from([1, 5, 16]),
        "max_in_flight": st.sampled_from([1, 2]),
        "tiers": st.sampled_from([None, (False, 0), (False, 3), (True, 0), (True, 4)]),
        "masked": st.sampled_from([None, EveryThird, OftenForced]),
        "adapter_looks": st.one_of(st.none(), st.lists(st.integers(0, 4), min_size=1, max_size=5)),
        "proposals": st.one_of(st.just([]), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=5)),
        "ngram": st.sampled_from([False, False, True]),
        "adaptive": st.booleans(),
        "proposal_s": st.sampled_from([0.0, 1e-4, 1e-3, 0.1]),
        "num_snapshots": st.sampled_from([None, None, 0, 1, 3, 12]),
    }
)
"""Besides the configuration: steps in flight, whether blocks are kept elsewhere (far away, and how often one is lost),
whether requests with a salt are masked, how often one must look for an adapter that is being loaded (None: all are
always there), how many tokens are proposed, of which the one at a place is wrong (or whether earlier text is), whether
it is chosen how many of them are verified, the seconds that one takes, and for how many snapshots of recurrent states
there is room (None: there are no such states; where there are, nothing is proposed or kept elsewhere)."""


ADAPTERS = {"small": 1, "large": 4, "other": 2}
"""Blocks that each takes."""


@dataclass(frozen=True)
class Arrival:
    stem: int
    shared: int
    own: int
    max_tokens: int
    n: int
    tenant: str
    weight: float
    priority: int
    salt: str
    adapter: str
    stops: bool
    prompt_logprobs: bool
    session: SessionTurn | None

    def prompt(self) -> list[int]:
        """Prompts of one stem begin alike."""
        stem = [(self.stem * 7 + i * i) % 50 for i in range(self.shared)]
        return stem + [(self.own * 11 + i) % 50 for i in range(self.own)]


arrivals = st.builds(
    Arrival,
    stem=st.integers(0, 1),
    shared=st.integers(0, 50),
    own=st.integers(1, 20),
    max_tokens=st.integers(0, 40),
    n=st.sampled_from([1, 1, 1, 2, 4]),
    tenant=st.sampled_from(["x", "y", "z"]),
    weight=st.sampled_from([1.0, 3.0]),
    priority=st.sampled_from([0, 0, 1, 10]),
    salt=st.sampled_from(["", "", "s"]),
    adapter=st.sampled_from(["", "", "small", "large", "other"]),
    stops=st.booleans(),
    prompt_logprobs=st.sampled_from([False, False, False, True]),
    session=st.none()
    | st.builds(
        SessionTurn,
        id=st.sampled_from([b"1", b"2", b"3"]),
        tree=st.sampled_from([b"", b"1"]),
        keep_s=st.sampled_from([0.0, 0.3, 60.0]),
        is_last=st.sampled_from([False, False, False, True]),
    ),
)
session_news = st.builds(
    SessionNews,
    session=st.sampled_from([b"1", b"2", b"3", b"unknown"]),
    event=st.sampled_from(SessionEvent),
    turn=st.integers(0, 30).map("r{}".format),
)
events = st.lists(
    st.one_of(arrivals, arrivals, st.integers(1, 12), session_news, st.tuples(st.just("abort"), st.integers(0, 30))),
    min_size=1,
    max_size=40,
)


def build(
    make_world: Callable,
    *,
    tiers: tuple[bool, int] | None = None,
    masked: type[EveryThird] | None = None,
    ngram: bool = False,
    proposal_s: float = 0.0,
    adapter_looks=None,
    num_snapshots: int | None = None,
    proposals: Sequence[tuple[int, int]] = (),
    **config,
):
    def seconds(plan) -> float:
        return 0.01 + 1e-4 * plan.num_tokens + proposal_s * sum(row.num_proposals for row in plan.rows)

    if num_snapshots is not None:
        tiers, ngram, proposals = None, False, ()
    return make_world(
        num_snapshots=num_snapshots,
        proposals=proposals,
        adapters=None if adapter_looks is None else ScriptedAdapters(ADAPTERS, adapter_looks),
        proposer=NgramProposer() if ngram else None,
        seconds=seconds,
        max_context_length=90,
        connector=None if tiers is None else DictConnector(far=tiers[0], losses=tiers[1]),
        masks=lambda message: masked() if masked and message.cache_salt else None,
        **config,
    )


def play(world, script) -> dict[str, Arrival]:
    """Carries the script out: an arrival, a number of steps, or an abort. Returns what was taken and not aborted."""
    notes = StepNotes(world)
    taken: dict[str, Arrival] = {}
    for event in script:
        if isinstance(event, Arrival):
            request_id = f"r{len(world.messages)}"
            if world.submit(
                request_id,
                event.prompt(),
                max_tokens=event.max_tokens,
                n=event.n,
                tenant=event.tenant,
                weight=event.weight,
                priority=event.priority,
                cache_salt=event.salt,
                adapter=event.adapter,
                stop_token_ids=[3, 4, 5] if event.stops else [],
                prompt_logprobs=0 if event.prompt_logprobs else None,
                seed=event.stem + event.own,
                session=event.session,
            ):
                taken[request_id] = event
        elif isinstance(event, SessionNews):
            world.engine.take_session_news(event)
        elif isinstance(event, tuple):
            world.engine.abort(f"r{event[1]}")
            taken.pop(f"r{event[1]}", None)
        else:
            for _ in range(event):
                checked_step(world, notes)
            notes.check_map()
    for _ in range(20_000):
        if not world.engine.has_work():
            notes.check_log()
            return taken
        checked_step(world, notes)
    raise AssertionError("some request never ends")


def checked_step(world, notes: StepNotes) -> None:
    """A step, and what must hold after each: budgets, slots, scopes."""
    before = len(world.executor.plans)
    notes.step()
    engine = world.engine
    running = list(engine.scheduler.running)
    assert len(running) <= world.config.max_num_seqs
    owner: dict[int, object] = {}
    for sequence in running:
        for block in sequence.blocks:
            scope = owner.setdefault(block, sequence.request.scope)
            assert scope == sequence.request.scope, "a block is shared across salts or adapters"
    if len(world.executor.plans) > before:
        plan = world.executor.plans[-1]
        assert plan.num_tokens <= world.config.token_budget
        assert plan.num_tokens or plan.kv_stores or plan.adapter_loads, "an empty plan"
        assert len({row.slot for row in plan.rows}) == len(plan.rows) <= world.config.max_num_seqs
        assert engine.stats().batch_tokens == plan.num_tokens or not plan.rows
    elif engine.has_work() and not engine.stats().refused_total:
        waits = [sequence for sequence in engine.scheduler.queue.candidates(world.now) if sequence.fetch is not None]
        loads = any(map(world.executor.adapters.is_loading, ADAPTERS)) if world.executor.adapters else False
        assert waits or loads, "there is work, but nothing was done"


@PROPERTY
@given(config=configs, script=events)
def test_every_request_ends_with_the_tokens_it_would_draw_alone(make_world: Callable, config, script):
    world = build(make_world, **config)
    taken = play(world, script)
    for request_id, event in taken.items():
        world.assert_answered(request_id)
        if event.prompt_logprobs:
            first = next(delta for delta in world.deltas[request_id] if delta.index == 0)
            assert len(first.prompt_logprobs) == len(event.prompt())
            tokens = [entry.chosen.token_id for entry in first.prompt_logprobs[1:]]
            assert tokens == event.prompt()[1:]


@settings(PROPERTY, max_examples=examples(120))
@given(config=configs, script=events)
def test_the_totals_add_up_once_all_is_quiet(make_world: Callable, config, script):
    world = build(make_world, **config)
    script = [event for event in script if not isinstance(event, tuple)]
    taken = play(world, script)
    stats = world.engine.stats()
    prompts = sum(len(event.prompt()) for event in taken.values())
    outputs = sum(len(delta.token_ids) for deltas in world.deltas.values() for delta in deltas)
    assert stats.prompt_tokens_total + stats.cached_tokens_total == prompts
    assert stats.output_tokens_total == outputs
    assert sum(stats.tenant_tokens_total.values()) == stats.prompt_tokens_total + outputs
    assert stats.finished_total == len(taken)
    assert stats.kv_blocks_free == stats.kv_blocks_total
    assert stats.running == stats.waiting == 0
    pool = world.engine.scheduler.memory.pool
    while pool.evict():
        world.engine.check_integrity()
    assert pool.num_idle == 0, "what is idle can go, whatever was hoped of it"


@settings(PROPERTY, max_examples=examples(100))
@given(config=configs, script=events)
def test_a_loop_that_plans_ahead_ends_every_request_as_the_synchronous_one(make_world: Callable, config, script):
    script = [event for event in script if not isinstance(event, tuple)]
    ends = []
    for max_in_flight in (1, 2):
        world = build(make_world, **{**config, "max_in_flight": max_in_flight})
        taken = play(world, script)
        ends.append(
            {
                (request_id, index): (world.output(request_id, index), world.finish_reason(request_id, index))
                for request_id, event in taken.items()
                for index in range(event.n)
            }
        )
    assert ends[0] == ends[1]


@settings(PROPERTY, max_examples=examples(40))
@given(config=configs, script=events)
def test_the_same_messages_at_the_same_times_give_the_same_plans(make_world: Callable, config, script):
    worlds = [build(make_world, **config) for _ in range(2)]
    for world in worlds:
        play(world, script)
    first, second = (msgspec.msgpack.encode(world.executor.plans) for world in worlds)
    assert first == second
