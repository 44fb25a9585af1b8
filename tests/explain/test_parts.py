"""Parts of requests: they follow one another without a gap and sum to the measured time, whatever was told."""

from __future__ import annotations

from itertools import pairwise

import pytest

from explained_world import ExplainedWorld, asked, mixed_load
from kvarn.explain.explanation import Part, Stage, TokenCause
from kvarn.observe.timeline import FIELDS, Event
from kvarn.observe.traces.traced import TracedTool, TracedTurn
from told_requests import FINISHED, FIRST, K, Phase, answered, told_request


def assert_tile(parts: list[Part], begin_s: float, end_s: float) -> None:
    assert parts[0].begin_s == pytest.approx(begin_s, abs=1e-9)
    assert parts[-1].end_s == pytest.approx(end_s, abs=1e-9)
    assert all(one.end_s == pytest.approx(other.begin_s, abs=1e-9) for one, other in pairwise(parts))
    for part in parts:
        assert part.end_s >= part.begin_s
        if part.parts:
            assert_tile(part.parts, part.begin_s, part.end_s)


@pytest.mark.parametrize("with_steps", [True, False])
def test_the_parts_of_a_thousand_requests_under_load_sum_to_what_was_measured(monkeypatch, with_steps):
    world = ExplainedWorld(monkeypatch, num_blocks=500, max_num_seqs=24, token_budget=512, max_in_flight=2)
    causes = set()
    for each in mixed_load(world, 1000).values():
        found = each.explained(with_steps=with_steps)
        assert abs(sum(part.end_s - part.begin_s for part in found.parts) - each.total_s) < 1e-6
        assert_tile(found.parts, 0.0, found.total_s)
        assert found.unexplained_s < 0.001
        assert found.cause.seconds <= found.total_s + 1e-9
        assert all(0 <= change.total_s <= found.total_s for change in found.counterfactuals)
        causes.add(found.cause.code)
    assert len(causes) >= 5, "a load that is mixed has several causes"


def test_a_preempted_turn_goes_on_with_its_tokens_computed_again():
    middle = [K.PREEMPTED, 500_000, 110, K.RESUMED, 900_000, 110, K.CHUNK, 900_000, 110, 1, 1, 110]
    spent = [
        *(K.SPENT, 1_500_000, Phase.PROMPT, 300_000),
        *(K.SPENT, 1_500_000, Phase.PREEMPTED, 400_000),
        *(K.SPENT, 1_500_000, Phase.DECODE, 800_000),
    ]
    found = told_request([*FIRST, *middle, *FINISHED, *spent]).explained()
    inside = [(part.name, round(part.end_s - part.begin_s, 3)) for part in found.parts]
    assert inside[-8:-3] == [
        ("prefill", 0.2),
        ("decode", 0.3),
        ("preempted", 0.4),
        ("prefill again", 0.1),
        ("decode", 0.5),
    ]


def test_tools_between_two_turns_are_a_part_and_the_slowest_is_named():
    times = (("received", 0.0), ("sent", 0.1), ("generated", 1.0), ("tools", 4.0), ("resolved", 4.1), ("sent", 4.2))
    events = [Event(name, at_s) for name, at_s in (*times, ("generated", 5.0), ("settled", 5.1), ("ended", 5.2))]
    calls = [
        TracedTool("a", "mcp", "files__read", "completed", 1.0, 2.0),
        TracedTool("b", "clock", "clock", "failed", 1.0, 3.9),
    ]
    found = answered(events, [TracedTurn(id="one", model="m"), TracedTurn(id="two", model="m")], calls).explained()
    assert_tile(found.parts, 0.0, found.total_s)
    (part,) = [each for each in found.parts if each.name == "tools"]
    assert (part.begin_s, part.end_s, part.detail) == (1.0, 4.0, "clock")
    assert found.cause.code == "tools" and found.sentence.startswith("3.0 s of 5.2 s went to tools: clock.")


def test_an_answer_that_the_gateway_ended_goes_on_until_then():
    found = told_request(FIRST, end_s=2.0).explained()
    assert [part.name for part in found.parts][-3:] == ["decode", "settle", "read"]
    assert found.unexplained_s == 0


def test_a_turn_of_which_nothing_was_told_is_unexplained():
    found = told_request(
        end_s=2.0, turn=TracedTurn(id="mine", model="tiny", replica="tiny-0", outcome="failed")
    ).explained()
    assert found.unexplained_s == pytest.approx(1.94)
    assert [part.stage for part in found.parts if part.name == "unexplained"] == [Stage.UNEXPLAINED]


def test_the_time_of_another_server_is_its_own():
    found = told_request(end_s=2.0, turn=TracedTurn(id="mine", model="gpt", output_tokens=5)).explained()
    assert found.unexplained_s == 0
    assert next(part.detail for part in found.parts if part.name == "decode") == "another server"


def test_a_request_that_no_model_took_says_so():
    names = ("received", "authenticated", "read", "parsed", "settled", "ended")
    found = answered([Event(name, place / 1000) for place, name in enumerate(names)], []).explained()
    assert found.sentence == "No model worked for it: it took 5.0 ms."
    assert_tile(found.parts, 0.0, 0.005)


def test_an_answer_out_of_the_cache_is_the_caches():
    names = ("received", "parsed", "resolved", "prompted", "stage.response_cache", "moderated", "first_token")
    events = [Event(name, place / 1000) for place, name in enumerate([*names, "generated", "settled", "ended"])]
    found = answered(events, [TracedTurn(id="mine", model="tiny", output_tokens=5)]).explained()
    assert [part.name for part in found.parts] == [
        *("prepare", "response cache", "moderation", "response cache", "settle", "read")
    ]
    assert_tile(found.parts, 0.0, 0.009)
    assert found.unexplained_s == 0 and found.sentence.startswith("No model worked for it")


def test_of_several_prompts_the_one_that_took_longest_is_told():
    once = told_request([*FIRST, *FINISHED], end_s=3.0)
    later = told_request([K.QUEUED, 0, 0, K.SCHEDULED, 900_000, 0, 0, K.FINISHED, 2_500_000, 1, 0, 0, 0])
    second = [event._replace(turn=2) for event in later.request.events if event.name.startswith("engine.")]
    found = answered([*once.request.events, *second], once.request.turns).explained()
    assert_tile(found.parts, 0.0, found.total_s)
    queue = next(part for part in found.parts if part.name == "queue")
    assert queue.end_s - queue.begin_s == pytest.approx(0.9)


def test_events_that_are_cut_off_leave_no_gap():
    flat = [*FIRST, *FINISHED]
    ends = [0]
    while ends[-1] < len(flat):
        ends.append(ends[-1] + 2 + len(FIELDS[flat[ends[-1]]]))
    for end in ends:
        found = told_request(flat[:end], end_s=3.0).explained()
        assert_tile(found.parts, 0.0, found.total_s)


def test_each_token_has_a_cell_with_when_and_why_it_came(monkeypatch):
    world = ExplainedWorld(monkeypatch, max_num_seqs=2, prefix_cache=False)
    world.warm()
    requests = [asked("mine", 0.0, 20, 40, priority=10), asked("prompt", 0.1, 1500, 1)]
    requests += [asked(f"chat{number}", 0.4, 20, 40) for number in range(2)]
    mine = world.play(requests)["mine"].explained()
    assert len(mine.tokens) == 40
    assert all(one.at_s + other.seconds == pytest.approx(other.at_s) for one, other in pairwise(mine.tokens))
    assert mine.tokens[0].cause is TokenCause.PROMPT
    assert {cell.cause for cell in mine.tokens[1:]} == {TokenCause.OWN, TokenCause.SHARED, TokenCause.PREEMPTED}
    assert max(mine.tokens, key=lambda cell: cell.seconds).cause is TokenCause.PREEMPTED
