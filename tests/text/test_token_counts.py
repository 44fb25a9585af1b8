"""Counts of tokens, against the tokens themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvarn.text.errors import TokenizerError
from kvarn.text.tokenizer import Tokenizer
from profiles import examples

PARTS = ["The", "mill", "two", "words", "it's", "1234", "é", "e\u0301", "漢字", "😀", "def f(x):", "▁", "Ġ", "x" * 80]
PARTS += [" ", "  ", "\n", "\n\n", "\t", "\u2003", "\xa0", ".", ",", "--", "<|end|>", "<tool_call>", "<s>", "[CLS]"]


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.one_of(st.sampled_from(PARTS), st.text(max_size=8)), max_size=20))
def test_a_text_has_as_many_tokens_as_its_tokenizer_makes(tokenizer: Tokenizer, parts: list[str]):
    text = "".join(parts).encode("utf-8", "ignore").decode()
    assert tokenizer.count(text) == len(tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize(
    ("kind", "by_words"), [("kvarn-demo", True), ("minilm", True), ("llama_like", False), ("gemma_like", False)]
)
def test_words_are_counted_alone_only_where_no_token_joins_them(load: Callable[[str], Tokenizer], kind, by_words):
    assert load(kind).count.by_words is by_words


def test_half_of_a_surrogate_pair_is_refused(tokenizer: Tokenizer):
    with pytest.raises(TokenizerError, match="surrogate"):
        tokenizer.count("a \ud83d b")
