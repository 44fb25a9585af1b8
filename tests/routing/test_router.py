"""Choice among replicas: who may answer, who is picked, and what a pick counts until the engine tells of it."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.costs.step_times import StepTimes
from kvarn.routing.candidate import Candidate, RouteRequest
from kvarn.routing.index import block_names
from kvarn.routing.policies import POLICIES, Situation, order_by_rank, pick_lowest, rank, score, usable
from kvarn.routing.router import ReplicaChoice, Router
from kvarn.wire.block_names import PrefixScope, root_hash
from kvarn.wire.engine_stats import AdapterStats
from kvarn.wire.messages import EngineStats
from profiles import examples

TIMES = StepTimes(fixed_s=0.01, prefill_token_s=1e-4, prefill_pair_s=0, decode_row_s=1e-3, decode_token_s=0)
ROOT = root_hash(PrefixScope())


def names(tokens: list[int]) -> bytes:
    return block_names(ROOT, tokens)


def stats(**fields: Any) -> EngineStats:
    return EngineStats(**({"step_times": TIMES, "kv_blocks_total": 1000, "kv_blocks_free": 1000} | fields))


def make_router(count: int = 4, policy: str = "prefix", **fields: Any) -> Router:
    router = Router(policy, seed=0)
    for number in range(count):
        watcher = router.add(str(number))
        if watcher is not None:
            watcher.replace(b"")
        router.candidates[str(number)].update(stats(**fields), 0.0)
    return router


def choose(router: Router, tokens: list[int] | None = None, now: float = 1.0, **fields: Any) -> ReplicaChoice:
    prompt = list(range(160)) if tokens is None else tokens
    choice = router.choose(RouteRequest(len(prompt), names(prompt), **fields), now)
    assert choice is not None
    return choice


def hold(router: Router, replica: str, tokens: list[int]) -> None:
    """The replica says that it has cached these tokens."""
    router._blocks[replica].change(names(tokens), b"")


# Filters -------------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([None, (), ("a",), ("a", "b")])), max_size=6),
    st.sampled_from(["", "a", "b"]),
    st.sets(st.integers(0, 5)),
)
def test_only_replicas_that_can_answer_are_considered(states: list[Any], adapter: str, excluded: set[int]) -> None:
    candidates = []
    for number, (available, adapters) in enumerate(states):
        candidate = Candidate(str(number))
        candidate.available, candidate.adapters = available, adapters
        candidates.append(candidate)
    request = RouteRequest(10, adapter=adapter, excluded={str(number) for number in excluded})
    found = {each.name for each in usable(request, candidates, 0.0)}
    for number, (available, adapters) in enumerate(states):
        has_adapter = not adapter or adapters is None or adapter in adapters
        assert (str(number) in found) == (available and number not in excluded and has_adapter)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_picks_an_excluded_replica_and_none_is_said(policy: str) -> None:
    router = make_router(3, policy)
    for _ in range(30):
        assert choose(router, excluded={"0", "2"}).replica == "1"
    assert router.choose(RouteRequest(5, excluded={"0", "1", "2"}), 0.0) is None
    router.candidates["1"].available = False
    assert router.choose(RouteRequest(5, excluded={"0", "2"}), 0.0) is None


# Scores --------------------------------------------------------------------------------------------------------------


def situation(last: str | None = None) -> Situation:
    return Situation(1.0, random.Random(0), last)


def candidate(cached: int = 0, **fields: Any) -> Candidate:
    made = Candidate("x")
    made.update(stats(**fields), 1.0)
    made.cached_tokens = cached
    return made


def test_each_part_of_the_load_and_each_uncached_token_speaks_against_a_replica() -> None:
    request = RouteRequest(1600, adapter="lora")
    base = score(request, candidate(), situation())
    assert score(request, candidate(160), situation()) < base
    assert score(request, candidate(prefill_tokens=500), situation()) > base
    assert score(request, candidate(waiting_tokens_by_priority={0: 300, 10: 200}), situation()) > base
    assert score(request, candidate(running=5), situation()) > base
    assert score(request, candidate(waiting=5), situation()) > score(request, candidate(running=5), situation())
    assert score(request, candidate(kv_blocks_cached=1000), situation()) > base
    full = score(request, candidate(kv_blocks_free=10), situation())
    assert full > score(request, candidate(kv_blocks_cached=1000), situation()) > base
    assert score(request, candidate(adapters=AdapterStats(running=["lora"])), situation()) < base
    assert score(request, candidate(), situation("x")) < base
    assert score(request, candidate(), situation("y")) == base


def test_a_queue_has_gone_on_since_it_was_told() -> None:
    waiting = candidate(prefill_tokens=2000)
    assert waiting.wait_s(1.0) > waiting.wait_s(1.1) > waiting.wait_s(100.0) >= 0
    assert waiting.wait_s(100.0) == candidate().wait_s(1.0)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=64), st.integers(0, 1000))
def test_what_is_picked_is_nearly_the_lowest(scores: list[float], seed: int) -> None:
    picked = scores[pick_lowest(scores, random.Random(seed))]
    best = min(scores)
    assert picked <= best + max(0.006, 0.15 * best)


def test_equals_share() -> None:
    chance = random.Random(0)
    counts = Counter(pick_lowest([1.0, 1.0, 5.0], chance) for _ in range(1000))
    assert counts[2] == 0 and min(counts[0], counts[1]) > 400


# The router ----------------------------------------------------------------------------------------------------------


def test_a_prompt_goes_where_most_of_it_is_cached_unless_that_waits_too_long() -> None:
    router, prompt = make_router(), list(range(3200))
    hold(router, "2", prompt[:1600])
    hold(router, "1", prompt[:160])
    choice = choose(router, prompt)
    assert (choice.replica, choice.cached_tokens) == ("2", 1600)
    choice.end()
    router.candidates["2"].update(stats(prefill_tokens=100_000), 1.0)
    assert choose(router, prompt).replica == "1"


def test_prefix_only_goes_there_all_the_same() -> None:
    router, prompt = make_router(policy="prefix_only"), list(range(3200))
    hold(router, "2", prompt[:16])
    router.candidates["2"].update(stats(prefill_tokens=100_000, waiting=50), 1.0)
    assert {choose(router, prompt).replica for _ in range(10)} == {"2"}


def test_a_burst_spreads_before_any_engine_has_told_of_it() -> None:
    router = make_router()
    hold(router, "3", list(range(64)))
    counts = Counter(choose(router, [*range(64), *([number] * 1600)]).replica for number in range(40))
    assert set(counts) == {"0", "1", "2", "3"} and max(counts.values()) <= 15


@pytest.mark.parametrize("policy", ["round_robin", "least_load", "random"])
def test_policies_that_read_no_names_spread_too_and_need_no_events(policy: str) -> None:
    router = Router(policy, seed=1)
    assert not router.reads_names
    for number in range(4):
        assert router.add(str(number)) is None
    counts = Counter(choose(router).replica for _ in range(400))
    low, high = (50, 150) if policy == "random" else (100, 100)
    assert min(counts.values()) >= low and max(counts.values()) <= high


def test_a_reservation_counts_until_the_statistics_do_or_it_ends() -> None:
    router = make_router(1)
    only = router.candidates["0"]
    first, second, third = (choose(router, now=0.0) for _ in range(3))
    assert only.reserved_tokens == 480 and only.load == 12
    first.sent(1.0)
    second.sent(2.0)
    only.update(stats(step_s=0.5, running=1), 2.2)  # of a step that began before the second was sent
    assert only.reserved_tokens == 320 and only.load == 9
    only.update(stats(step_s=0.1, running=2), 3.0)  # the third waits in the gateway
    assert only.reserved_tokens == 160
    third.end()
    third.end()
    first.end()
    assert only.reserved_tokens == only.reserved_rows == 0 and not only.reservations


@given(
    st.lists(st.tuples(st.sampled_from(["choose", "send", "end", "stats", "leave"]), st.integers(0, 9)), max_size=60)
)
@settings(max_examples=100, deadline=None)
def test_reservations_add_up(operations: list[tuple[str, int]]) -> None:
    router, now, open_ = make_router(3), 0.0, list[ReplicaChoice]()
    for operation, number in operations:
        now += 0.1
        if operation == "choose" and router.candidates:
            open_.append(choose(router, list(range(number * 30 + 1)), now))
        elif operation == "send" and open_:
            open_[number % len(open_)].sent(now)
        elif operation == "end" and open_:
            open_.pop(number % len(open_)).end()
        elif operation == "stats" and str(number) in router.candidates:
            router.candidates[str(number)].update(stats(step_s=0.15), now)
        elif operation == "leave":
            router.remove(str(number))
    for choice in open_:
        choice.end()
    for each in router.candidates.values():
        assert each.reserved_tokens == each.reserved_rows == 0 and not each.reservations


def test_a_conversation_stays_where_it_was_among_equals() -> None:
    router = make_router()
    first = choose(router, session="c1", tokens=[1] * 5000)
    first.end()
    for _ in range(20):
        again = choose(router, session="c1", tokens=[2] * 5000)
        again.end()
        assert again.replica == first.replica


# Silence -------------------------------------------------------------------------------------------------------------


def picked(router: Router, now: float, **fields: Any) -> set[str]:
    """The replicas that 20 requests, which end at once, go to."""
    choices = [choose(router, now=now, **fields) for _ in range(20)]
    for each in choices:
        each.end()
    return {each.replica for each in choices}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_replica_that_works_and_tells_nothing_gets_none_while_another_is_heard(policy: str) -> None:
    router = make_router(3, policy, every_s=0.25, running=1)
    assert picked(router, 0.4, excluded={"1", "2"}) == {"0"}
    for name in ("1", "2"):
        router.candidates[name].update(stats(every_s=0.25, running=1), 1.0)
    if router.reads_names:
        hold(router, "0", list(range(160)))
    assert "0" not in picked(router, 1.0)
    assert router.choose(RouteRequest(160, refusing={"1", "2"}), 1.0) is None, "those that are heard refuse it"
    assert picked(router, 1.0, excluded={"1", "2"}) == {"0"}, "those that are heard have failed it"
    router.candidates["1"].available = router.candidates["2"].available = False
    assert picked(router, 1.0) == {"0"}, "it is the only one"
    router.candidates["1"].available = True
    router.candidates["0"].update(stats(every_s=0.25, running=1), 2.0)
    assert picked(router, 2.0) == {"0"}, "it is heard again, and the other is not"


def test_where_all_are_silent_all_are_considered() -> None:
    router = make_router(3, "round_robin", every_s=0.25, running=1)
    assert picked(router, 60.0) == {"0", "1", "2"}


def test_a_replica_that_rests_owes_nothing_until_something_is_sent_to_it() -> None:
    router = make_router(2, "round_robin", every_s=0.25)
    assert picked(router, 3600.0) == {"0", "1"}
    sent, waits = choose(router, now=3600.0), choose(router, now=3600.0)
    sent.sent(3600.0)
    assert picked(router, 3600.4) == {"0", "1"}
    assert picked(router, 3601.0) == {waits.replica}, "what waits in the gateway is not owed"
    silent = router.candidates[sent.replica]
    silent.update(stats(every_s=0.25), 3601.0)  # made before it had read what was sent
    assert silent.is_silent(3602.0) is False, "its answer has come and gone: it rests"


def test_what_was_sent_while_the_last_step_ran_is_owed_from_then_on() -> None:
    router = make_router(2, "round_robin", every_s=0.25)
    choice = choose(router, now=10.0)
    choice.sent(10.0)
    router.candidates[choice.replica].update(stats(every_s=0.25, step_s=0.1), 10.05)
    assert not router.candidates[choice.replica].is_silent(10.5)
    assert router.candidates[choice.replica].is_silent(11.0)


def test_a_step_as_long_as_its_work_is_no_silence() -> None:
    """Prompts of a slow machine: a step of 2,048 tokens takes ten seconds, one of a hundred half a second."""
    slow = StepTimes(fixed_s=0.01, prefill_token_s=5e-3)
    for tokens, silent in ((50_000, False), (100, True)):
        one = candidate(every_s=0.25, running=1, prefill_tokens=tokens, step_times=slow)
        assert one.is_silent(11.0) is silent
    assert not candidate(every_s=0.25, running=1, step_s=9.0, step_times=slow).is_silent(11.0), "as its last one"


@pytest.mark.parametrize("unknown", [{"every_s": 0.0}, {"step_times": None}])
def test_one_of_which_is_not_known_when_it_speaks_is_never_silent(unknown: dict[str, Any]) -> None:
    assert candidate(every_s=0.25, running=1).is_silent(10.0)
    assert not candidate(**{"every_s": 0.25, "running": 1} | unknown).is_silent(10.0)


# Blind ---------------------------------------------------------------------------------------------------------------


def test_while_nothing_is_known_prompts_that_begin_alike_go_to_one_replica_within_its_share() -> None:
    router = Router("prefix", seed=0)
    for number in range(4):
        router.add(str(number))
    for number in range(30):
        picked = set()
        for tail in range(5):
            choice = choose(router, [number] * 200 + [tail] * 50)
            choice.end()
            picked.add(choice.replica)
        assert len(picked) == 1
    counts = Counter(choose(router, [7] * 200).replica for _ in range(40))
    assert max(counts.values()) <= 1.25 * 40 / 4 + 1, "more than its share of the load"
    assert choose(router, [1]).replica in "0123"  # less than a block


def test_what_is_told_of_one_replica_ends_the_blindness_and_its_death_brings_it_back() -> None:
    router, prompt = Router("prefix", seed=0), list(range(3200))
    watchers = [router.add(str(number)) for number in range(3)]
    blind = choose(router, prompt)
    blind.end()
    holder = next(number for number in range(3) if str(number) != blind.replica)
    watcher = watchers[holder]
    assert watcher is not None
    watcher.replace(names(prompt))
    known = choose(router, prompt)
    known.end()
    assert known.replica == str(holder) and known.cached_tokens == 3200
    watcher.forget()
    assert choose(router, prompt).replica == blind.replica


def test_replicas_come_and_go_and_numbers_are_used_again() -> None:
    router, prompt = Router("prefix", seed=0), list(range(160))
    for generation in range(100):
        watcher = router.add(f"r{generation}")
        assert watcher is not None
        watcher.replace(names([generation] * 160))
        if generation >= 3:
            router.remove(f"r{generation - 3}")
        assert choose(router, prompt).cached_tokens == 0
        choice = choose(router, [generation] * 160)
        assert (choice.replica, choice.cached_tokens) == (f"r{generation}", 160)


def test_more_replicas_than_the_index_has_numbers_are_chosen_by_load() -> None:
    router = Router("prefix", seed=0)
    watchers = [router.add(str(number)) for number in range(70)]
    assert sum(watcher is not None for watcher in watchers) == 64
    assert len({choose(router, [1]).replica for _ in range(70)}) > 60


NAMES = st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=8, unique=True)


@settings(max_examples=examples(200))
@given(st.binary(max_size=20), NAMES, st.data())
def test_when_a_replica_goes_the_others_keep_their_order(key: bytes, names: list[str], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(names))
    assert [name for name in rank(key, names) if name != gone] == rank(key, [name for name in names if name != gone])


@settings(max_examples=examples(100))
@given(NAMES, st.lists(st.binary(min_size=1, max_size=4), max_size=100), st.floats(1.05, 3))
def test_no_replica_has_more_than_its_bound(names: list[str], keys: list[bytes], balance: float) -> None:
    loads = dict.fromkeys(names, 0)
    for placed, key in enumerate(keys, 1):
        order = order_by_rank(key, loads, balance)
        assert sorted(order) == sorted(names)
        loads[order[0]] += 1
        assert max(loads.values()) <= math.ceil(balance * placed / len(names))


def test_keys_spread_evenly_and_stay_where_they_are_without_load() -> None:
    names = [f"replica-{number}" for number in range(4)]
    idle = dict.fromkeys(names, 0)
    firsts = [order_by_rank(str(number).encode(), idle)[0] for number in range(4000)]
    assert firsts == [rank(str(number).encode(), names)[0] for number in range(4000)]
    counts = Counter(firsts)
    assert all(880 < counts[name] < 1120 for name in names), "six standard deviations of 27"
    assert order_by_rank(b"x", {}) == []
