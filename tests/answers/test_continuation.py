"""The next turn's prompt begins with the tokens of the turn before, whatever the template's text is tokenized to."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kvarn.answers.chat.continuation import continue_tokens

WORDS = ["a", "b", "å", "ab", "bå", "abå", "<end>"]
tokens = st.lists(st.integers(0, len(WORDS) - 1), max_size=12)


def decode(ids: Sequence[int]) -> str:
    return "".join(WORDS[each] for each in ids)


def greedy(text: str) -> list[int]:
    """The tokens that a tokenizer would choose: the longest first."""
    ids: list[int] = []
    while text:
        ids.append(max((n for n, word in enumerate(WORDS) if text.startswith(word)), key=lambda n: len(WORDS[n])))
        text = text[len(WORDS[ids[-1]]) :]
    return ids


def test_an_answer_in_other_tokens_is_kept_as_the_model_wrote_it():
    before, now = [6, 0, 1, 2], [*greedy("<end>abå"), *greedy("<end>b")]
    assert now[:2] == [6, 5]
    assert continue_tokens(before, now, decode) == [*before, 6, 1]


@given(tokens, tokens)
def test_the_text_is_always_that_of_the_template_and_the_cached_tokens_are_used_where_they_fit(before, rest):
    now = [*greedy(decode(before)), *rest]
    given = continue_tokens(before, now, decode)
    assert decode(given) == decode(now)
    assert given[: len(before)] == before


@given(tokens, tokens)
def test_another_text_stays_as_the_template_wrote_it(before, now):
    given = continue_tokens(before, now, decode)
    assert decode(given) == decode(now)
    assert given == now or given[: len(before)] == before
