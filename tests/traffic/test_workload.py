"""Prompts, arrivals and traces: what is sent and when."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.bench.answer import AnswerStream
from kvarn.bench.records import Chunk, Record, keep_chunks, spread_tokens
from kvarn.traffic.trace import Scaling, TraceEntry, TraceError, parse_trace, read_trace, scale_trace
from kvarn.traffic.workload import (
    BenchRequest,
    Lengths,
    Segment,
    Vocabulary,
    poisson_arrivals,
    synthetic_requests,
    warm_up_requests,
)

VOCABULARY = Vocabulary(300, 4000)


def common_prefix(left, right):
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def test_poisson_arrivals_are_seeded_have_the_rate_and_exponential_gaps():
    arrivals = poisson_arrivals(50.0, seed=3, count=20_000)
    assert arrivals == poisson_arrivals(50.0, seed=3, count=20_000)
    assert arrivals[:10] != poisson_arrivals(50.0, seed=4, count=10)
    gaps = np.diff([0.0, *arrivals])
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(0.02, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)  # an exponential's deviation is its mean


def test_poisson_arrivals_end_at_the_duration_or_the_count_whichever_is_first():
    within = poisson_arrivals(10.0, seed=0, duration_s=20.0)
    assert within[-1] <= 20.0
    assert 150 < len(within) < 250
    assert poisson_arrivals(10.0, seed=0, duration_s=20.0, count=7) == within[:7]
    with pytest.raises(ValueError, match="needs an end"):
        poisson_arrivals(10.0, seed=0)


def test_lengths_are_read_and_drawn_within_both_ends():
    drawn = Lengths.parse("3:5").draw(500, np.random.default_rng(0))
    assert set(drawn) == {3, 4, 5}
    assert Lengths.parse("7") == Lengths(7, 7)
    for wrong in ("0", "5:3", "x", "1:2:3", "-4"):
        with pytest.raises(ValueError, match="number of tokens"):
            Lengths.parse(wrong)
    with pytest.raises(ValueError, match="range of token ids"):
        Vocabulary.parse("300")


@given(st.integers(0, 2**41), st.integers(0, 900), st.integers(0, 900), st.integers(0, 9))
def test_equal_keys_give_equal_tokens_and_a_shorter_segment_is_a_prefix(key, one, other, seed):
    short, long = sorted((one, other))
    ids = Segment(key, long).token_ids(VOCABULARY, seed)
    assert Segment(key, short).token_ids(VOCABULARY, seed) == ids[:short]
    assert all(VOCABULARY.low <= token < VOCABULARY.high for token in ids)
    assert Segment(key, long).text(seed).startswith(Segment(key, short).text(seed).rstrip())


def test_synthetic_prompts_share_their_prefix_and_nothing_else():
    made = synthetic_requests(count=20, prompt=Lengths(8, 16), output=Lengths(2, 4), shared_prefix=32, seed=1)
    prompts = [each.token_ids(VOCABULARY, 1) for each in made]
    assert all(common_prefix(prompts[0], other) == 32 for other in prompts[1:])
    assert all(8 <= len(prompt) - 32 <= 16 for prompt in prompts)
    assert {each.output_tokens for each in made} == {2, 3, 4}
    again = synthetic_requests(count=20, prompt=Lengths(8, 16), output=Lengths(2, 4), shared_prefix=32, seed=1)
    assert again == made


def test_a_warm_up_shares_only_what_all_requests_share():
    made = synthetic_requests(count=3, prompt=Lengths(8, 8), output=Lengths(4, 4), shared_prefix=16)
    warm = warm_up_requests(made, 2)
    prompts = [each.token_ids(VOCABULARY, 0) for each in (*warm, made[0])]
    assert common_prefix(prompts[0], prompts[2]) == common_prefix(prompts[0], prompts[1]) == 16
    alone = warm_up_requests(made[:1], 1)[0].token_ids(VOCABULARY, 0)
    assert common_prefix(alone, prompts[2]) == 0
    assert warm_up_requests([], 3) == []


ENTRIES = st.lists(st.tuples(st.integers(0, 10**7), st.integers(1, 10**5), st.integers(0, 10**4)), min_size=1)


@given(ENTRIES)
def test_azure_lines_read_back(rows):
    start = datetime(2023, 11, 16, 18, 15, 46, tzinfo=UTC)
    times = [(start + timedelta(milliseconds=row[0])).strftime("%Y-%m-%d %H:%M:%S.%f0+00:00") for row in rows]
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens\n"]
    lines += [f"{when},{prompt},{output}\r\n" for when, (_, prompt, output) in zip(times, rows, strict=True)]
    read = list(parse_trace(lines))
    assert [(entry.prompt_tokens, entry.output_tokens) for entry in read] == [(row[1], row[2]) for row in rows]
    offsets = [entry.arrival_s - start.timestamp() for entry in read]
    assert offsets == pytest.approx([row[0] / 1000 for row in rows], abs=1e-5)


@given(ENTRIES)
def test_mooncake_lines_read_back(rows):
    made = [
        TraceEntry(
            arrival_s=when / 1000,
            prompt_tokens=prompt,
            output_tokens=output,
            hash_ids=tuple(range(-(-prompt // 512))),
        )
        for when, prompt, output in rows
    ]
    lines = [
        json.dumps(
            {
                "timestamp": entry.arrival_s * 1000,
                "input_length": entry.prompt_tokens,
                "output_length": entry.output_tokens,
                "hash_ids": entry.hash_ids,
            }
        )
        for entry in made
    ]
    read = list(parse_trace(lines))
    assert [entry.arrival_s for entry in read] == pytest.approx([entry.arrival_s for entry in made])
    assert [(e.prompt_tokens, e.output_tokens, e.hash_ids) for e in read] == [
        (e.prompt_tokens, e.output_tokens, e.hash_ids) for e in made
    ]


@st.composite
def traces_with_sharing(draw):
    """Entries whose ids branch like conversations do, with last blocks that are not full."""
    paths = draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=2, max_size=6))
    names: dict[tuple[int, ...], int] = {}
    entries = []
    for path in paths:
        ids = tuple(names.setdefault(tuple(path[: depth + 1]), len(names)) for depth in range(len(path)))
        tail = draw(st.integers(1, 512))
        entries.append(
            TraceEntry(arrival_s=0.0, prompt_tokens=512 * (len(ids) - 1) + tail, output_tokens=1, hash_ids=ids)
        )
    return entries


@given(traces_with_sharing(), st.sampled_from([1.0, 0.25, 1 / 64, 0.001]))
def test_prompts_share_exactly_the_blocks_that_their_hash_ids_share(entries, length):
    block = max(1, round(512 * length))
    made = scale_trace(entries, Scaling(length=length))
    prompts = [each.token_ids(VOCABULARY, 0) for each in made]
    for left, one in enumerate(entries):
        for right, other in enumerate(entries[:left]):
            shared = common_prefix(one.hash_ids, other.hash_ids) * block
            expected = min(shared, len(prompts[left]), len(prompts[right]))
            assert common_prefix(prompts[left], prompts[right]) == expected


def test_scaling_changes_times_and_lengths_and_cuts_prompts_at_their_end():
    entry = TraceEntry(arrival_s=8.0, prompt_tokens=1200, output_tokens=100, hash_ids=(4, 5, 6))
    whole, small = (scale_trace([entry], scaling)[0] for scaling in (Scaling(), Scaling(time=0.5, length=0.25)))
    assert (whole.arrival_s, whole.prompt_tokens, whole.output_tokens) == (8.0, 1200, 100)
    assert (small.arrival_s, small.prompt_tokens, small.output_tokens) == (4.0, 300, 25)
    cut = scale_trace([entry], Scaling(max_prompt_tokens=700, max_output_tokens=10))[0]
    assert (cut.prompt_tokens, cut.output_tokens) == (700, 10)
    assert cut.token_ids(VOCABULARY, 0) == whole.token_ids(VOCABULARY, 0)[:700]


def test_a_trace_starts_at_zero_in_order_and_ends_where_asked(tmp_path):
    path = tmp_path / "trace.csv"
    day = "2023-11-16 18:15"
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{day}:50.5,3,4\n{day}:46.0,1,2\n{day}:59.0,5,6\n")
    assert [(each.arrival_s, each.prompt_tokens) for each in read_trace(path)] == [(0, 1), (4.5, 3), (13, 5)]
    assert len(read_trace(path, max_requests=2)) == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,many,2\n", "line 2"),
        ('{"timestamp": 1, "input_length": 600, "output_length": 2, "hash_ids": [1]}\n', "names 1 blocks"),
        ('{"timestamp": 1, "input_length": 5}\n', "line 1"),
        ("", "no requests"),
    ],
)
def test_a_bad_trace_names_the_line(tmp_path, content, says):
    path = tmp_path / "trace"
    path.write_text(content)
    with pytest.raises(TraceError, match=says):
        read_trace(path)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 300))
def test_tokens_are_spread_to_the_last_one_and_each_chunk_gets_one_where_there_are_enough(characters, tokens):
    counts = spread_tokens(characters, tokens)
    assert sum(counts) == tokens
    assert min(counts) >= (1 if tokens >= len(characters) else 0)


@pytest.mark.parametrize(("tokens", "times"), [(2, [1.0, 2.0]), (3, [1.0, 2.0, 3.0])])
def test_a_closing_chunk_without_text_counts_only_if_a_token_is_left_for_it(tokens, times):
    record = Record(index=0, scheduled_s=0.0, sent_s=0.0, output_tokens=tokens)
    keep_chunks(record, [Chunk(1.0, 4), Chunk(2.0, 4), Chunk(3.0, 0, True)])
    assert record.chunk_times == times
    assert sum(record.chunk_tokens) == tokens


def test_a_request_knows_its_length_before_its_tokens_are_made():
    request = BenchRequest(index=0, segments=(Segment(1, 5), Segment(2, 6)), output_tokens=1)
    assert request.prompt_tokens == 11 == len(request.token_ids(VOCABULARY, 0))
    assert len(request.text(0).split()) == 11


STREAM = (
    'data: {"choices": [{"text": "å"}]}\r\n\r\n: a comment\n\n'
    'data:{"choices": [{"text": "bc", "finish_reason": "length"}]}\n\n'
    'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}\n\ndata: [DONE]'
).encode()


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_a_stream_may_be_cut_anywhere_into_pieces(cuts):
    stream = AnswerStream(0.0)
    edges = [0, *sorted(cuts), len(STREAM)]
    for at, (start, end) in enumerate(pairwise(edges)):
        stream.feed(float(at), 200, STREAM[start:end])
    stream.close()
    assert [chunk.characters for chunk in stream.chunks] == [1, 2]
    assert (stream.usage.prompt_tokens, stream.usage.completion_tokens) == (3, 2)
    assert stream.finished
    assert stream.error is None
