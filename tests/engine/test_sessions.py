"""Sessions: which blocks go when room is needed, and who starts first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kv_connectors import DictConnector
from kvarn.costs.step_times import StepTimes
from kvarn.engine.memory.block_value import LOOKS
from kvarn.engine.sessions.branch import Branch
from kvarn.engine.sessions.table import Sessions
from kvarn.engine.step_time import StepTimeModel
from kvarn.wire.sessions import SessionEvent, SessionNews, SessionTurn

TIMES = StepTimes(fixed_s=0.01, prefill_token_s=1e-3, prefill_pair_s=1e-6, decode_row_s=1e-4)


def timed() -> dict[str, object]:
    """Step times that the engine knows from the beginning."""
    return {"step_time": StepTimeModel.knowing(TIMES), "seconds": lambda plan: 0.01 + 1e-3 * plan.num_tokens}


BLOCK = 16


@pytest.fixture
def world(make_world):
    return make_world(num_blocks=64, max_num_seqs=4, **timed())


def turn(name: str, **fields: object) -> SessionTurn:
    return SessionTurn(id=name.encode(), **fields)


def ask(world, request_id: str, prompt: list[int] | int, session: SessionTurn | None, **fields) -> list[int]:
    """Has a request answered; returns the tokens of prompt and answer."""
    assert world.submit(request_id, prompt, session=session, max_tokens=fields.pop("max_tokens", 4), **fields)
    world.run()
    return [*world.messages[request_id].prompt_token_ids, *world.output(request_id)]


def called_tools(world, session: str, request_id: str) -> None:
    tell(world, session, SessionEvent.CALLED_TOOLS, request_id)


def tell(world, session: str, event: SessionEvent, request_id: str = "") -> None:
    world.engine.take_session_news(SessionNews(session=session.encode(), event=event, turn=request_id))


def cached(world, tokens: list[int]) -> int:
    """Blocks of the tokens that are in the prefix cache."""
    scope = next(iter(world.engine.cache.scopes.values()))
    return len(world.engine.cache.match(tokens, scope, len(tokens)))


def fill(world, blocks: int, prefix: str = "stranger") -> None:
    """Strangers that take so many blocks, one after the other."""
    numbers: Iterator[int] = iter(range(1000))
    while blocks > 0:
        number = next(numbers)
        tokens = [number % 50, len(prefix), *(i % 50 for i in range(4 * BLOCK - 2))]
        ask(world, f"{prefix}{number}", tokens, None, max_tokens=1)
        blocks -= 4


def test_a_session_that_waits_for_a_tool_outlasts_strangers_that_came_later(world):
    agent = ask(world, "agent", 20 * BLOCK, turn("agent"))
    called_tools(world, "agent", "agent")
    fill(world, 100)
    assert cached(world, agent) == 20
    assert ask(world, "again", [*agent, *range(20)], turn("agent"))
    assert world.deltas["again"][0].cached_tokens == 20 * BLOCK


def test_without_sessions_the_least_recently_used_goes(world):
    first = ask(world, "first", 20 * BLOCK, None)
    fill(world, 100)
    assert cached(world, first) == 0


def test_a_session_that_has_been_away_for_long_is_worth_nothing(world):
    agent = ask(world, "agent", 20 * BLOCK, turn("agent"))
    called_tools(world, "agent", "agent")
    world.now += 1e7
    fill(world, 100)
    assert cached(world, agent) == 0


def test_a_hint_keeps_a_session_longer_than_another_and_ends(world):
    plain = ask(world, "plain", 20 * BLOCK, turn("plain"))
    hinted = ask(world, "hinted", 20 * BLOCK, turn("hinted", keep_s=3000.0))
    world.now += 600.0
    fill(world, 30)
    assert cached(world, hinted) == 20
    assert cached(world, plain) < 20
    world.now += 1e7
    fill(world, 100, "later")
    assert cached(world, hinted) == 0


@pytest.mark.parametrize("how", ["news", "last turn"])
def test_a_session_that_has_ended_goes_first(world, how):
    ended = ask(world, "ended", 20 * BLOCK, turn("ended", is_last=how == "last turn"))
    stranger = ask(world, "older", 20 * BLOCK, None)
    if how == "news":
        tell(world, "ended", SessionEvent.ENDED)
    fill(world, 44)
    assert cached(world, ended) == 0
    assert cached(world, stranger) == 20


def test_a_full_cache_of_sessions_that_are_all_expected_has_room_for_others(world):
    for name in ("a", "b", "c"):
        ask(world, name, 20 * BLOCK, turn(name, keep_s=3600.0))
        called_tools(world, name, name)
        tell(world, name, SessionEvent.RETURNS)
    assert ask(world, "stranger", 50 * BLOCK, None)
    assert not world.refused


def test_an_announced_turn_keeps_what_others_lose(world):
    both = [ask(world, name, 20 * BLOCK, turn(name)) for name in ("first", "second")]
    world.now += 300.0
    tell(world, "first", SessionEvent.RETURNS)
    fill(world, 36)
    assert cached(world, both[0]) == 20
    assert cached(world, both[1]) < 20


def test_a_state_that_its_conversation_has_left_behind_goes_first(world):
    before = ask(world, "before", 20 * BLOCK, turn("agent"))
    edited = [*before[: 12 * BLOCK], *[3] * (4 * BLOCK)]
    session = world.engine.scheduler.memory.sessions.get(b"agent")
    session.branches[0].first_blocks = 4  # its first prompt was so long
    after = ask(world, "after", edited, turn("agent"))
    assert len(session.branches) == 1
    fill(world, 48)
    assert cached(world, before) == 12
    assert cached(world, after) == 16


def test_another_conversation_of_a_session_leaves_the_first_alone(world):
    main = ask(world, "main", 10 * BLOCK, turn("agent"))
    helper = ask(world, "helper", [*main[: 4 * BLOCK], *[9] * (6 * BLOCK)], turn("agent"))
    session = world.engine.scheduler.memory.sessions.get(b"agent")
    assert len(session.branches) == 2
    assert not any(branch.has_ended for branch in session.branches)
    nodes = world.engine.cache.match(main, world.engine.cache.scopes[1], len(main))
    assert [node.branch is Branch.COMMON for node in nodes] == [True] * 4 + [False] * 6
    assert cached(world, helper) == 10


def test_a_conversation_whose_blocks_are_gone_is_known_when_it_comes_back(world):
    agent = ask(world, "agent", 20 * BLOCK, turn("agent"))
    world.now += 1e5
    fill(world, 100)
    ask(world, "again", [*agent, *range(20)], turn("agent"))
    stats = world.engine.stats().sessions
    assert (stats.known, stats.returns_total, stats.resident_returns_total) == (1, 1, 0)
    assert len(world.engine.scheduler.memory.sessions.get(b"agent").branches) == 1


def test_a_return_to_what_is_cached_is_counted_so(world):
    agent = ask(world, "agent", 5 * BLOCK, turn("agent"))
    ask(world, "again", [*agent, *range(20)], turn("agent"))
    assert world.engine.stats().sessions.resident_returns_total == 1


def test_gaps_after_tools_are_learned_apart_from_pauses(world):
    tokens = ask(world, "t0", 40, turn("agent"))
    for number in range(1, 9):
        if number % 2:
            called_tools(world, "agent", f"t{number - 1}")
        world.now += 2.0 if number % 2 else 400.0
        tokens = ask(world, f"t{number}", [*tokens, 7], turn("agent"))
    answer, tools = world.engine.scheduler.memory.sessions.get(b"agent").branches[0].estimates
    assert tools.mu < 2.5 < 4.0 < answer.mu


def test_more_sessions_than_are_looked_at_at_once_are_evicted_all_the_same(make_world):
    world = make_world(num_blocks=3 * LOOKS, max_num_seqs=4, recount_every=20)
    for number in range(3 * LOOKS):
        ask(world, f"s{number}", [number % 50, number // 50, *[5] * 20], turn(f"{number}"), max_tokens=1)
    assert ask(world, "large", 2 * LOOKS * BLOCK, None)


def test_a_turn_that_runs_for_long_does_not_keep_the_sessions_that_came_after_it():
    sessions = Sessions(max_sessions=2)
    sessions.begin(turn("long"), "tenant", [], 1, 0.0)
    for number in range(5):
        other = turn(f"other {number}")
        branch, _ = sessions.begin(other, "tenant", [], 1, float(number))
        sessions.end(other, "request", branch, float(number))
    assert len(sessions) == 2 and sessions.get(b"long") is not None


def test_a_deleted_tenant_leaves_no_session(world):
    ask(world, "agent", 20 * BLOCK, turn("agent"), tenant="gone")
    world.engine.forget_tenant("gone")
    assert world.engine.stats().sessions.known == 0
    world.engine.check_integrity()


# Beyond the device ----------------------------------------------------------------------------------------------------


@pytest.fixture
def tiered(make_world):
    return make_world(num_blocks=24, connector=DictConnector(far=True), **timed())


def test_an_announced_turn_is_brought_near_before_it_comes(tiered):
    tokens = ask(tiered, "agent", 12 * BLOCK, turn("agent"))
    tiered.now += 1e6
    fill(tiered, 40)
    assert cached(tiered, tokens) == 0
    connector = tiered.executor._connector
    fetches = len(connector.fetches)
    tell(tiered, "agent", SessionEvent.RETURNS)
    assert len(connector.fetches) == fetches + 1
    tell(tiered, "agent", SessionEvent.RETURNS)
    assert len(connector.fetches) == fetches + 1, "one fetch for one turn"
    while not connector.fetches[-1].is_done():
        pass
    ask(tiered, "again", [*tokens, 1, 2, 3], turn("agent"))
    assert len(connector.fetches) == fetches + 1, "what is near need not be fetched"
    assert connector.num_loaded >= 12


def test_announcements_are_bounded(tiered):
    connector = tiered.executor._connector
    connector.stuck = True
    names = [f"s{number}" for number in range(40)]
    for number, name in enumerate(names):
        ask(tiered, name, [number, *[4] * (3 * BLOCK)], turn(name), max_tokens=1)
    tiered.now += 1e6
    fill(tiered, 60)
    before = len(connector.fetches)
    for name in names:
        tell(tiered, name, SessionEvent.RETURNS)
    assert len(connector.fetches) - before == 16
    tiered.now += 61.0
    tell(tiered, names[-1], SessionEvent.RETURNS)
    assert len(connector.fetches) - before == 17, "those that did not come have ended"


# Who starts first -----------------------------------------------------------------------------------------------------


def starts(world) -> list[str]:
    found: list[str] = []
    while world.engine.has_work():
        for delta in world.step():
            if delta.request_id not in found:
                found.append(delta.request_id)
    return found


def test_a_person_is_not_behind_all_helpers_of_an_agent(make_world):
    world = make_world(max_num_seqs=1)
    for number in range(20):
        world.submit(f"helper{number}", 5, session=turn(f"h{number}", tree=b"agent"))
    world.now += 3.0
    world.submit("person", 5, session=turn("person"))
    assert starts(world).index("person") < 6


def test_helpers_of_different_sessions_without_a_tree_are_in_order_of_arrival(make_world):
    world = make_world(max_num_seqs=1)
    for number in range(5):
        world.submit(f"s{number}", 5, session=turn(f"s{number}"))
    assert starts(world) == [f"s{number}" for number in range(5)]


def test_the_next_turn_of_a_session_that_is_here_goes_before_a_stranger(make_world):
    world = make_world(max_num_seqs=1, **timed())
    tokens = ask(world, "agent", 20 * BLOCK, turn("agent"))
    world.submit("running", 5, max_tokens=50)
    world.step()
    world.submit("stranger", 5)
    world.step()
    world.submit("next", [*tokens, 1], session=turn("agent"))
    assert starts(world) == ["running", "next", "stranger"]


def test_a_stranger_that_has_waited_longer_than_the_head_start_goes_first(make_world):
    world = make_world(max_num_seqs=1, priority_ageing_s=1.0, **timed())
    tokens = ask(world, "agent", 20 * BLOCK, turn("agent"))
    world.submit("running", 5, max_tokens=50)
    world.step()
    world.submit("stranger", 5)
    world.now += 0.3
    world.submit("next", [*tokens, 1], session=turn("agent"))
    assert starts(world) == ["running", "stranger", "next"]
