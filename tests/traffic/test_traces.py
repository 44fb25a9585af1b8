"""Traces of each format as conversations: times, lengths, what prompts share; and their scaling."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.traffic.conversation import Conversation, ConversationTurn, turns_of
from kvarn.traffic.entries import TraceError
from kvarn.traffic.presets import traffic_of
from kvarn.traffic.scaling import Scaling, apart, beginning_at, repeated, scaled, until
from kvarn.traffic.trace import form_of, open_trace, parse_trace
from kvarn.traffic.workload import Segment, Vocabulary

VOCABULARY = Vocabulary(300, 4000)
ENTRIES = st.lists(st.tuples(st.integers(0, 10**7), st.integers(1, 10**5), st.integers(1, 10**4)), min_size=1)


def common_prefix(left, right):
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def ids(turn):
    return [token for segment in turn.segments for token in segment.token_ids(VOCABULARY, 0)]


def figures(traffic):
    return [(each.begins_s, each.turns[0].prompt_tokens, each.turns[0].output_tokens) for each in traffic]


def expected(rows):
    first = min(row[0] for row in rows)
    return [((when - first) / 1000, prompt, output) for when, prompt, output in sorted(rows, key=lambda row: row[0])]


@given(ENTRIES)
def test_azure_lines_read_back(rows):
    start = datetime(2023, 11, 16, 18, 15, 46, tzinfo=UTC)
    times = [(start + timedelta(milliseconds=row[0])).strftime("%Y-%m-%d %H:%M:%S.%f0+00:00") for row in rows]
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens\n"]
    lines += [f"{when},{prompt},{output}\r\n" for when, (_, prompt, output) in zip(times, rows, strict=True)]
    read = figures(parse_trace(iter(lines)))
    assert [row[1:] for row in read] == [row[1:] for row in expected(rows)]
    assert [row[0] for row in read] == pytest.approx([row[0] for row in expected(rows)], abs=1e-5)


def mooncake(when, prompt, output, names=(), **more):
    return json.dumps({"timestamp": when, "input_length": prompt, "output_length": output, "hash_ids": names} | more)


@given(ENTRIES)
def test_mooncake_lines_read_back(rows):
    lines = [mooncake(when, prompt, output, tuple(range(-(-prompt // 512)))) for when, prompt, output in rows]
    traffic = list(parse_trace(iter(lines)))
    assert [row[1:] for row in figures(traffic)] == [row[1:] for row in expected(rows)]
    assert [row[0] for row in figures(traffic)] == pytest.approx([row[0] for row in expected(rows)])
    assert all(
        [segment.key for segment in each.turns[0].segments] == list(range(len(each.turns[0].segments)))
        for each in traffic
    )


@st.composite
def traces_with_sharing(draw):
    """Entries whose ids branch like conversations do, with last blocks that are not full."""
    paths = draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=2, max_size=6))
    names: dict[tuple[int, ...], int] = {}
    found = []
    for path in paths:
        blocks = tuple(names.setdefault(tuple(path[: depth + 1]), len(names)) for depth in range(len(path)))
        found.append((512 * (len(blocks) - 1) + draw(st.integers(1, 512)), blocks))
    return found


@given(traces_with_sharing(), st.sampled_from([1.0, 0.25, 1 / 64, 0.001]))
def test_prompts_share_exactly_the_blocks_that_their_hash_ids_share(entries, length):
    block = max(1, round(512 * length))
    lines = [mooncake(place, prompt, 1, names) for place, (prompt, names) in enumerate(entries)]
    prompts = [ids(each.turns[0]) for each in scaled(parse_trace(iter(lines)), Scaling(length=length))]
    for left, (_, one) in enumerate(entries):
        for right, (_, other) in enumerate(entries[:left]):
            shared = common_prefix(one, other) * block
            assert common_prefix(prompts[left], prompts[right]) == min(shared, len(prompts[left]), len(prompts[right]))


def test_a_trace_starts_at_zero_and_in_order(tmp_path):
    path = tmp_path / "trace.csv"
    day = "2023-11-16 18:15"
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{day}:50.5,3,4\n{day}:46.0,1,2\n{day}:59.0,5,6\n")
    assert figures(open_trace(path)) == [(0, 1, 2), (4.5, 3, 4), (13, 5, 6)]
    assert figures(until(open_trace(path), 4.5)) == [(0, 1, 2), (4.5, 3, 4)]


def test_a_long_trace_is_never_read_as_a_whole():
    def lines():
        for number in range(10**9):
            yield mooncake(number * 10, 5, 5)

    assert len(list(islice(parse_trace(lines()), 3000))) == 3000


def test_a_conversation_whose_turns_are_counted_is_given_on_at_its_last():
    read = 0

    def lines():
        nonlocal read
        for number in range(10**9):
            read += 1
            yield mooncake(number * 10, 5, 5, session_id=f"s-{number // 2}", turns=2 if number % 2 == 0 else None)

    assert [len(each.turns) for each in islice(parse_trace(lines()), 100)] == [2] * 100
    assert read < 2000


def test_turns_of_a_session_follow_each_other_and_their_prompts_grow():
    lines = [
        mooncake(0, 100, 10, session_id="a", duration=2000),
        mooncake(1000, 7, 1),
        mooncake(5000, 150, 20, session_id="a"),
        mooncake(6000, 300, 5, session_id="a", delay=4000, tenant="t", model="m"),
        mooncake(7000, 60, 5, session_id="a"),
    ]
    [chat, single] = parse_trace(iter(lines))
    assert (chat.session, chat.begins_s, [turn.gap_s for turn in chat.turns]) == ("a", 0.0, [0.0, 3.0, 4.0, 1.0])
    assert [turn.prompt_tokens for turn in chat.turns] == [100, 150, 300, 60]
    prompts = [ids(turn) for turn in chat.turns]
    assert common_prefix(prompts[0], prompts[1]) == 100
    assert common_prefix(prompts[1], prompts[2]) == 150
    assert common_prefix(prompts[2], prompts[3]) == 0  # shorter than what went before: a prompt of its own
    assert chat.turns[1].segments[1] == Segment(chat.turns[0].answer_key, 10)
    assert (single.begins_s, single.turns[0].prompt_tokens) == (1.0, 7)


def test_a_session_that_rests_for_long_goes_on_as_another_conversation():
    lines = [mooncake(0, 9, 1, session_id="a"), mooncake(4_000_000, 9, 1, session_id="a"), mooncake(4_000_001, 8, 1)]
    assert [(each.begins_s, each.session) for each in parse_trace(iter(lines))] == [
        (0, "a"),
        (4000, "a"),
        (4000.001, ""),
    ]


def test_burstgpt_has_sessions_and_failed_requests_are_left_out():
    lines = [
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
        "19440110.0,s-1,3,GPT-4,90,40,130,Conversation log\n",
        "19440111.0,,2,ChatGPT,36,29,65,API log\n",
        "19440112.0,,2,ChatGPT,36,0,36,API log\n",
        "19440120.0,s-1,3,GPT-4,200,10,210,Conversation log\n",
    ]
    chat, single = parse_trace(iter(lines))
    assert [(turn.prompt_tokens, turn.output_tokens, turn.gap_s) for turn in chat.turns] == [(90, 40, 0), (200, 10, 7)]
    assert figures([single]) == [(1.0, 36, 29)]
    old = [
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
        "5,ChatGPT,472,18,490,Conversation log\n",
    ]
    assert figures(parse_trace(iter(old))) == [(0.0, 472, 18)]


def call(t, tokens, names, **more):
    return {"t": t, "type": "n", "in": tokens, "out": 10, "hash_ids": names, "api_time": 1.0} | more


def weka(*requests, **more):
    return json.dumps({"id": "trace_1", "block_size": 64, "hash_id_scope": "local", "requests": requests} | more)


@pytest.mark.parametrize("offset", [0.0, 2.0], ids=["relative times", "times of the trace"])
def test_a_weka_conversation_has_its_turns_its_blocks_and_its_subagents(offset, tmp_path):
    agent = {
        "t": 2.0,
        "type": "subagent",
        "agent_id": "x",
        "requests": [call(offset + 0.5, 64, [9]), call(offset + 3, 70, [9])],
    }
    path = tmp_path / "trace.json"
    path.write_text(
        weka(call(0, 128, [1, 2], stop="tool_use"), agent, call(10.0, 150, [1, 2]), call(12.0, 20, [7], type="s"))
    )
    [read] = open_trace(path)
    first, second, third = read.turns
    assert (first.is_tool_call, second.is_tool_call, read.session) == (True, False, "trace_1")
    assert [turn.prompt_tokens for turn in read.turns] == [128, 150, 20]
    assert common_prefix(ids(first), ids(second)) == 128
    [child] = first.subagents
    assert (child.session, child.begins_s, child.is_awaited) == ("trace_1/x", 1.5, True)
    assert [turn.prompt_tokens for turn in child.turns] == [64, 70]
    assert second.gap_s == pytest.approx(10.0 - 6.0)  # after the sub-agent's end at 2 + 3 + 1 s
    assert third.gap_s == pytest.approx(1.0)


def test_a_subagent_that_outlasts_the_next_turn_is_not_awaited_and_scopes_are_kept_apart(tmp_path):
    agent = {"t": 1.0, "type": "subagent", "requests": [call(1.0, 64, [9], api_time=50.0)]}
    (tmp_path / "a.json").write_text(weka(call(0, 64, [1]), agent, call(5.0, 64, [1])))
    pretty = json.dumps(json.loads(weka(call(0, 64, [1]), hash_id_scope="local")), indent=2)
    (tmp_path / "b.json").write_text(pretty)
    first, other = open_trace(tmp_path)
    assert not first.turns[0].subagents[0].is_awaited
    assert first.turns[1].gap_s == 4.0
    assert common_prefix(ids(first.turns[0]), ids(other.turns[0])) == 0
    lines = "\n".join(weka(call(0, 64, [1]), hash_id_scope="global") for _ in range(2))
    one, two = parse_trace(iter(lines.splitlines(keepends=True)))
    assert ids(one.turns[0]) == ids(two.turns[0])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,many,2\n", "line 2"),
        ('{"timestamp": 1, "input_length": 600, "output_length": 2, "hash_ids": [1]}\n', "names 1 blocks"),
        ('{"timestamp": 1, "input_length": 5}\n', "line 1"),
        ('{"input_length": 5, "output_length": 5}\n', "neither a timestamp nor a delay"),
        ('{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [-1]}\n', "block id"),
        ("Timestamp,Model,Request tokens,Response tokens\nnow,m,1,2\n", "line 2 of the trace has no numbers"),
        ("Timestamp,Model,Request tokens,Response tokens\nnan,m,1,2\n", "line 2 of the trace has no finite time"),
        ('{"id": "x", "requests": [{"t": 0, "in": 0, "out": 1}]}', "call at t=0 with a prompt below 1"),
        ('{"id": "x", "requests": [{"t": 0, "in": 9, "out": 1, "hash_ids": [1, 2]}]}', "too many for a prompt of 9"),
        ('{"id": "x", "requests": []}', "without calls"),
        ('{"id": "x"}', "is not a Weka conversation"),
        ("".join(mooncake(5000 - (n == 1500), 5, 5) + "\n" for n in range(3000)), "line 1501 of the trace is earlier"),
        ("", "no requests"),
    ],
)
def test_a_bad_trace_names_the_line(tmp_path, content, says):
    path = tmp_path / "trace"
    path.write_text(content)
    with pytest.raises(TraceError, match=says):
        list(open_trace(path))


def test_what_cannot_be_opened_is_said(tmp_path):
    for read in (lambda path: list(open_trace(path)), form_of):
        with pytest.raises(TraceError, match="cannot read the trace"):
            read(tmp_path / "nothing")


def conversation(begins_s=8.0, *names):
    segments = (*(Segment(name, 512) for name in names or (4, 5)), Segment(6, 176))
    agent = Conversation(begins_s=1.0, turns=(ConversationTurn(segments=segments, output_tokens=8),))
    turn = ConversationTurn(segments=segments, output_tokens=100, gap_s=2.0, answer_key=9, subagents=(agent,))
    return Conversation(begins_s=begins_s, turns=(turn,), session="s")


def test_scaling_changes_times_and_lengths_and_cuts_prompts_at_their_end():
    [small] = scaled(iter([conversation()]), Scaling(time=0.5, length=0.25))
    [turn] = small.turns
    assert (small.begins_s, turn.prompt_tokens, turn.output_tokens, turn.gap_s) == (4.0, 300, 25, 1.0)
    assert [(each.begins_s, each.turns[0].output_tokens) for each in turn.subagents] == [(0.5, 2)]
    [cut] = scaled(iter([conversation()]), Scaling(max_prompt_tokens=700, max_output_tokens=10))
    assert (cut.turns[0].prompt_tokens, cut.turns[0].output_tokens) == (700, 10)
    assert ids(cut.turns[0]) == ids(conversation().turns[0])[:700]
    assert list(scaled(iter([conversation()]), Scaling())) == [conversation()]


@pytest.mark.parametrize("rate", [0.25, 1.5, 3.0])
def test_another_rate_keeps_the_curve_and_gives_copies_prompts_of_their_own(rate):
    original = list(traffic_of("azure-conv", rps=20, duration_s=200))
    made = list(scaled(iter(original), Scaling(rate=rate), seed=1))
    assert len(made) == pytest.approx(rate * len(original), rel=0.05)
    assert [each.begins_s for each in made] == sorted(each.begins_s for each in made)
    assert len({each.turns[0].segments for each in made}) == len(made)
    assert list(scaled(iter(original), Scaling(rate=rate), seed=1)) == made
    halves = [sum(each.begins_s < 100 for each in traffic) / len(traffic) for traffic in (original, made)]
    assert halves[0] == pytest.approx(halves[1], abs=0.04)


def test_a_copy_shares_with_itself_as_the_original_does():
    both = list(scaled(iter([conversation(0.0), conversation(1.0)]), Scaling(rate=2.0)))
    keys = {each.session: {segment.key for turn in turns_of(each) for segment in turn.segments} for each in both}
    assert sorted(keys) == ["s", "s+1"]
    assert len(keys["s"]) == len(keys["s+1"]) == 3
    assert keys["s"].isdisjoint(keys["s+1"])
    assert {each.turns[0].answer_key for each in both} == {9, 9 + (1 << 49)}


def test_traffic_is_repeated_to_fill_a_duration_with_new_prompts_in_each_pass():
    made = list(repeated(lambda: iter([conversation(0.0), conversation(2.0), conversation(4.0)]), 15.0))
    assert [each.begins_s for each in made] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]
    assert len({each.turns[0].segments[0].key for each in made}) == 3
    with pytest.raises(ValueError, match="give a rate"):
        list(repeated(lambda: iter([conversation(0.0)]), 15.0))
    with pytest.raises(ValueError, match="too short for this duration"):
        list(repeated(lambda: iter([conversation(0.0), conversation(1e-3)]), 100.0, copies=100))


def test_streams_that_are_kept_apart_share_nothing():
    one, other = (next(apart(iter([conversation()]), number)) for number in (0, 1))
    assert one == conversation()
    assert other.session == one.session
    keys = [{segment.key for turn in turns_of(each) for segment in turn.segments} for each in (one, other)]
    assert keys[0].isdisjoint(keys[1])


def test_conversations_begin_at_other_times():
    assert [each.begins_s for each in beginning_at(iter([conversation()] * 3), iter([1.0, 5.0]))] == [1.0, 5.0]


@pytest.mark.parametrize(
    ("scaling", "says"), [({"rate": 0.0}, "above 0"), ({"length": -1}, "above 0"), ({"rate": 1e6}, "at most")]
)
def test_impossible_factors_are_refused(scaling, says):
    with pytest.raises(ValueError, match=says):
        scaled(iter(()), Scaling(**scaling))
