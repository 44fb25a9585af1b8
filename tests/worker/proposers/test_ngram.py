"""Guesses from text that was there before."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.config.speculation import SpeculationConfig
from kvarn.engine.request import Sequence
from kvarn.kernels.search import longest_match, longest_match_reference
from kvarn.worker.proposers.ngram import NgramProposer
from profiles import examples
from sequences import make_sequence


def guess(proposer: NgramProposer, sequence: Sequence, limit: int = 8) -> list[int]:
    [found] = proposer.propose([(sequence, limit)])
    return found.tokens


def finish(proposer: NgramProposer, prompt: list[int], answer: list[int], **scope: str) -> None:
    sequence = make_sequence(prompt, **scope)
    sequence.tokens += answer
    proposer.forget(sequence)


def what_followed(tokens: list[int], limit: int) -> list[int]:
    """The tokens after the last one of the longest earlier occurrences of the end, found by trying every place."""
    best, place = 0, 0
    for end in range(1, len(tokens)):
        match = 0
        while match < end and tokens[end - 1 - match] == tokens[-1 - match]:
            match += 1
        if match and match >= best:
            best, place = match, end
    text = list(tokens)
    for _ in range(limit if best else 0):
        text.append(text[place])
        place += 1
    return text[len(tokens) :]


@settings(max_examples=examples(200), derandomize=True)
@given(tokens=st.lists(st.integers(0, 3), min_size=1, max_size=40), limit=st.integers(1, 8))
def test_the_longest_earlier_occurrence_is_continued(tokens, limit):
    assert guess(NgramProposer(), make_sequence(tokens), limit) == what_followed(tokens, limit)


@settings(max_examples=examples(60), derandomize=True)
@given(
    prompt=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    steps=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=10),
)
def test_a_followed_place_guesses_tokens_that_came_after_the_same_token(prompt, steps):
    """While a guess comes true its place is followed: perhaps not the longest match any more, but one."""
    proposer, sequence = NgramProposer(), make_sequence(prompt)
    for step in steps:
        sequence.tokens += step
        found, tokens = guess(proposer, sequence, 1), sequence.tokens
        followers = {after for before, after in itertools.pairwise(tokens) if before == tokens[-1]}
        assert set(found) <= followers
        assert bool(found) == bool(followers)


def test_a_text_with_another_token_is_followed_behind_it():
    """The value in a template, for example: what came after it last time comes again."""
    proposer = NgramProposer()
    finish(proposer, [1], [10, 11, 12, 500, 13, 14, 15])
    sequence = make_sequence([2])
    sequence.tokens += [10, 11, 12]
    assert guess(proposer, sequence, 3) == [500, 13, 14]
    sequence.tokens += [501]
    assert guess(proposer, sequence, 3) == [13, 14, 15]
    sequence.tokens += [13]
    assert guess(proposer, sequence, 3) == [14, 15]
    sequence.tokens += [601]
    assert guess(proposer, sequence, 3) == []  # one token came true after that: too few to go on from


tokens_of_few_kinds = st.lists(st.integers(0, 2), max_size=300).map(lambda tokens: np.array(tokens, dtype=np.int32))


@settings(max_examples=examples(200), derandomize=True)
@given(text=tokens_of_few_kinds, tail=tokens_of_few_kinds)
def test_the_compiled_search_finds_what_the_reference_finds(text, tail):
    assert longest_match(text, tail) == longest_match_reference(text, tail)


def test_an_answer_helps_later_requests_of_its_tenant_salt_and_adapter_alone():
    proposer = NgramProposer()
    finish(proposer, [1, 2, 3], [4, 5, 6, 7], tenant="a", cache_salt="s", adapter="l")
    assert guess(proposer, make_sequence([9, 2, 3], tenant="a", cache_salt="s", adapter="l")) == [4, 5, 6, 7]
    assert guess(proposer, make_sequence([9, 2, 3], tenant="b", cache_salt="s", adapter="l")) == []
    assert guess(proposer, make_sequence([9, 2, 3], tenant="a", cache_salt="", adapter="l")) == []
    assert guess(proposer, make_sequence([9, 2, 3], tenant="a", cache_salt="s", adapter="")) == []
    private = NgramProposer(SpeculationConfig(tenant_history=False))
    finish(private, [1, 2, 3], [4, 5, 6, 7])
    assert guess(private, make_sequence([9, 2, 3])) == []


def test_a_guess_ends_where_an_answer_ended():
    proposer = NgramProposer()
    finish(proposer, [1], [4, 5, 6])
    finish(proposer, [2], [7, 8])
    assert guess(proposer, make_sequence([30, 4])) == [5, 6]


def test_the_smallest_match_can_be_set():
    config = SpeculationConfig(prompt_lookup_min=3)
    assert guess(NgramProposer(config), make_sequence([1, 2, 3, 4, 9, 2, 3])) == []
    assert guess(NgramProposer(config), make_sequence([1, 2, 3, 4, 1, 2, 3]), 1) == [4]


def test_memory_is_bounded_and_given_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(NgramProposer, "SCOPES", 4)
    monkeypatch.setattr(NgramProposer, "HISTORY", 1024)
    proposer = NgramProposer()
    bound = 4 * 4 * 2 * 1024  # an array has up to twice the room that its tokens need
    for number in range(60):
        finish(proposer, [number], [number + i % 7 for i in range(200)], tenant=f"t{number % 12}")
        assert proposer.nbytes <= bound
    held = proposer.nbytes
    sequences = [make_sequence(list(range(5000)), tenant="t0") for _ in range(3)]
    for sequence in sequences:
        guess(proposer, sequence)
    assert held < proposer.nbytes <= held + 3 * 4 * 5100
    for sequence in sequences:
        proposer.forget(sequence)
    assert proposer.nbytes <= bound


def test_positions_that_changed_are_not_followed(monkeypatch: pytest.MonkeyPatch):
    """Old answers are dropped while a sequence follows one of them."""
    monkeypatch.setattr(NgramProposer, "HISTORY", 64)
    proposer = NgramProposer()
    finish(proposer, [1], [100, 101, 102, 103, 104, 105])
    sequence = make_sequence([100])
    assert guess(proposer, sequence, 2) == [101, 102]
    for number in range(12):
        finish(proposer, [2], [200 + number, 300 + number, 400 + number])
    sequence.tokens += [101]
    assert guess(proposer, sequence, 2) == []
