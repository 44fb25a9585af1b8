"""Prompts and arrivals: what is sent and when."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.bench.answer import AnswerStream
from kvarn.bench.records import Chunk, Record, keep_chunks, spread_tokens
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
