"""Parts of texts that are longer than an embedding model reads, against their tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.retrieval.embedding import split_long
from kvarn.text.checkpoint import local_checkpoint
from kvarn.text.tokenizer import Tokenizer
from profiles import examples


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    checkpoint = local_checkpoint("kvarn-demo")
    if checkpoint is None:
        pytest.skip("the package carries no kvarn-demo")
    return Tokenizer.load(checkpoint)


@settings(max_examples=examples(50))
@given(text=st.text("ab é漢.\n", max_size=400), longest=st.integers(4, 60))
def test_parts_are_read_whole_and_are_the_text(tokenizer: Tokenizer, text: str, longest: int):
    parts = split_long(text, tokenizer, longest)
    assert [tokens for _, tokens in parts] == [tokenizer.encode(part, add_special_tokens=True) for part, _ in parts]
    assert all(len(tokens) <= longest or len(part) == 1 for part, tokens in parts)
    if text.strip():
        assert "".join(part for part, _ in parts if part != ".").translate({32: None, 10: None, 46: None}) == (
            text.translate({32: None, 10: None, 46: None})
        )
    else:
        assert [part for part, _ in parts] == ["."]
