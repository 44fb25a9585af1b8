"""Which turns come when a turn was answered."""

from __future__ import annotations

from kvarn.traffic.conversation import Conversation, ConversationTurn, turns_of
from kvarn.traffic.course import first_turn


def turn(output_tokens, gap_s=0.0, *subagents):
    return ConversationTurn(segments=(), output_tokens=output_tokens, gap_s=gap_s, subagents=subagents)


def test_a_turn_comes_its_gap_after_the_answer_to_the_one_before():
    first = first_turn(Conversation(begins_s=5.0, turns=(turn(1), turn(2, 3.0))))
    assert (first.at_s, first.turn.output_tokens) == (5.0, 1)
    [second] = first.answered(7.0)
    assert (second.at_s, second.turn.output_tokens, second.number) == (10.0, 2, 1)
    assert second.answered(11.0) == []


def test_a_turn_waits_for_all_subagents_of_the_turn_before_it():
    one = Conversation(begins_s=0.0, turns=(turn(11), turn(12, 1.0)))
    other = Conversation(begins_s=2.0, turns=(turn(21),))
    parent = Conversation(begins_s=0.0, turns=(turn(1, 0.0, one, other), turn(2, 5.0)))
    assert [each.output_tokens for each in turns_of(parent)] == [1, 11, 12, 21, 2]
    first, second = first_turn(parent).answered(10.0)
    assert (first.at_s, second.at_s) == (10.0, 12.0)
    [later] = first.answered(13.0)
    assert later.at_s == 14.0
    assert second.answered(20.0) == []
    [after] = later.answered(30.0)
    assert (after.at_s, after.turn.output_tokens) == (35.0, 2)


def test_subagents_of_the_last_turn_run_on_by_themselves_and_nobody_waits_for_them():
    background = Conversation(begins_s=0.0, turns=(turn(99),))
    agent = Conversation(begins_s=0.0, turns=(turn(11, 0.0, background),))
    parent = Conversation(begins_s=0.0, turns=(turn(1, 0.0, agent), turn(2, 5.0)))
    [started] = first_turn(parent).answered(1.0)
    running, after = started.answered(4.0)
    assert (running.turn.output_tokens, running.at_s) == (99, 4.0)
    assert (after.turn.output_tokens, after.at_s) == (2, 9.0)
    assert running.answered(50.0) == []
