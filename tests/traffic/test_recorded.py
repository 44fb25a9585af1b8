"""Recorded requests as traffic, and traffic as a trace: lengths, times and what prompts share survive; names do not."""

from __future__ import annotations

import json
from itertools import islice

import pytest

from kvarn.traffic.conversation import turns_of
from kvarn.traffic.export import BlockIds, written
from kvarn.traffic.presets import traffic_of
from kvarn.traffic.recorded import Pseudonyms, RecordedRequest, recorded
from kvarn.traffic.scaling import Scaling, scaled
from kvarn.traffic.trace import parse_trace
from kvarn.traffic.workload import Segment

NAMES = Pseudonyms(b"salt")


def request(started_s, input_tokens, output_tokens=10, cached_tokens=0, **more):
    return RecordedRequest(
        started_s=started_s,
        took_s=2.0,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=cached_tokens,
        **({"tenant": "org-a", "model": "tiny"} | more),
    )


def cached_tokens(traffic):
    """Tokens of each turn's prompt that a cache without bounds has."""
    seen, found = {}, []
    for conversation in traffic:
        for turn in turns_of(conversation):
            cached, longest = 0, True
            for segment in turn.segments:
                held = min(seen.get(segment.key, 0), segment.length) if longest else 0
                cached, longest = cached + held, held == segment.length
                seen[segment.key] = max(seen.get(segment.key, 0), segment.length)
            seen[turn.answer_key] = turn.output_tokens
            found.append(cached)
    return found


def test_single_requests_hit_as_much_as_they_did():
    requests = [request(5.0, 100), request(6.5, 80, cached_tokens=64), request(7.0, 200, cached_tokens=64)]
    requests.append(request(8.0, 90, tenant="org-b"))
    traffic = list(recorded(requests, NAMES))
    assert [each.begins_s for each in traffic] == [0.0, 1.5, 2.0, 3.0]
    assert [each.turns[0].prompt_tokens for each in traffic] == [100, 80, 200, 90]
    assert cached_tokens(traffic) == [0, 0, 64, 0]  # the first that has the prefix brings it


def test_requests_of_a_session_are_turns_that_repeat_what_went_before():
    requests = [
        request(0.0, 100, session="chat"),
        request(1.0, 50, session="chat", tenant="org-b"),
        request(10.0, 150, 20, session="chat", cached_tokens=96),
        request(12.5, 120, session="chat", cached_tokens=64),
    ]
    chat, other = recorded(requests, NAMES)
    assert [turn.gap_s for turn in chat.turns] == [0.0, 8.0, 0.5]
    assert [turn.prompt_tokens for turn in chat.turns] == [100, 150, 120]
    assert cached_tokens([chat]) == [0, 110, 64]
    assert chat.session != other.session  # another tenant's session of the same name


def test_pseudonyms_are_the_same_with_the_same_salt_and_tell_nothing_without_it():
    assert NAMES.of("tenant", "org-a") == Pseudonyms(b"salt").of("tenant", "org-a")
    assert len({NAMES.of("tenant", "org-a"), NAMES.of("tenant", "org-b"), Pseudonyms(b"").of("tenant", "org-a")}) == 3
    assert NAMES.of("session", "") == ""
    lines = b"".join(written(recorded([request(0.0, 5, session="secret")], NAMES)))
    assert b"secret" not in lines
    assert b"org-a" not in lines


def test_block_ids_are_shared_exactly_as_far_as_prompts_are():
    ids = BlockIds(4)
    assert ids.of([Segment(1, 6), Segment(2, 3)]) == [0, 1, 2]
    assert ids.of([Segment(1, 10)]) == [0, 3, 4]
    assert ids.of([Segment(1, 4), Segment(9, 4)]) == [0, 5]
    assert ids.of([Segment(1, 6), Segment(2, 2)]) == [0, 1]
    assert ids.of([Segment(7, 4)] * 2) == [6, 7]  # a block's name says what is before it


def shape(conversation):
    """All that a trace keeps, with blocks by what they share."""
    ids = BlockIds(16)
    turns = [(turn.output_tokens, pytest.approx(turn.gap_s, abs=1e-3)) for turn in turns_of(conversation)]
    blocks = [ids.of(turn.segments) for turn in turns_of(conversation)]
    lengths = [turn.prompt_tokens for turn in turns_of(conversation)]
    return turns, blocks, lengths, pytest.approx(conversation.begins_s, abs=1e-3), conversation.tenant


def test_mooncake_lines_bring_back_the_traffic_that_was_written():
    requests = [request(0.0, 128, 16), request(0.5, 64, cached_tokens=48)]
    requests += [request(10.0 * turn, 160 * turn, 16, session="chat", cached_tokens=16) for turn in (1, 2, 3)]
    traffic = list(recorded(requests, NAMES))
    lines = [line.decode() for line in written(iter(traffic), block=16)]
    assert len(lines) == 5
    assert [shape(each) for each in parse_trace(iter(lines))] == [shape(each) for each in traffic]
    assert json.loads(lines[3])["delay"] == 8000


def test_weka_lines_bring_back_sessions_with_their_subagents():
    small = scaled(traffic_of("agentic", rps=1, seed=4), Scaling(length=0.1))
    traffic = [each for each in islice(small, 12) if len(each.turns) < 60]
    assert any(turn.subagents for each in traffic for turn in each.turns)
    read = parse_trace(line.decode() for line in written(iter(traffic), "weka"))
    for one, other in zip(traffic, read, strict=True):
        figures = [
            [
                (turn.prompt_tokens, turn.output_tokens, turn.is_tool_call, len(turn.subagents))
                for turn in turns_of(each)
            ]
            for each in (one, other)
        ]
        assert figures[0] == figures[1]
        gaps = [[turn.gap_s for turn in turns_of(each)] for each in (one, other)]
        assert gaps[0] == pytest.approx(gaps[1], abs=1e-4)
    with pytest.raises(ValueError, match="write the conversations in Weka's"):
        list(written(iter(traffic)))
