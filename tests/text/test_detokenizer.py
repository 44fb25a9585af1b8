from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.text.detokenizer import IncrementalDetokenizer
from kvarn.text.tokenizer import Tokenizer
from profiles import examples


def pieces(tokenizer: Tokenizer, ids: list[int], cuts: list[int], skip_special_tokens: bool = True) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    bounds = sorted({0, *(cut % (len(ids) + 1) for cut in cuts), len(ids)})
    pushed = [detokenizer.push(ids[start:end]) for start, end in pairwise(bounds)]
    return [*pushed, detokenizer.flush()]


@settings(max_examples=examples(150))
@given(data=st.data())
def test_any_tokens_in_any_split_give_the_text_of_the_whole(tokenizer: Tokenizer, data: st.DataObject) -> None:
    favourites = sorted({*tokenizer.byte_fallback_ids, *tokenizer.encode("é 漢😀  a", add_special_tokens=True)})
    # Ids a little above the vocabulary too: embedding matrices are padded, and a model may draw from the padding.
    anything = st.integers(0, tokenizer.vocab_size + 3)
    ids = data.draw(st.lists(anything | st.sampled_from(favourites), max_size=24))
    cuts = data.draw(st.lists(st.integers(0, 100), max_size=24))
    skip = data.draw(st.booleans())
    assert "".join(pieces(tokenizer, ids, cuts, skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@settings(max_examples=examples(60))
@given(text=st.text(max_size=40))
def test_text_comes_back_token_by_token_with_no_character_cut(load, byte_level_tokenizer, text):
    ids = byte_level_tokenizer.encode(text, add_special_tokens=False)
    parts = pieces(byte_level_tokenizer, ids, list(range(len(ids))))
    assert "".join(parts) == text
    assert all("\ufffd" not in part for part in parts) or "\ufffd" in text


@pytest.fixture(scope="module")
def byte_level_tokenizer(load: Callable[[str], Tokenizer]) -> Tokenizer:
    return load("byte_level")


@pytest.mark.parametrize("kind", ["byte_level", "llama_like", "gemma_like"])
def test_an_emoji_is_shown_only_when_its_last_byte_is_there(load: Callable[[str], Tokenizer], kind: str) -> None:
    tokenizer = load(kind)
    ids = tokenizer.encode("a🦉 b", add_special_tokens=False)
    parts = pieces(tokenizer, ids, list(range(len(ids))))
    assert "".join(parts) == tokenizer.decode(ids)
    assert any("🦉" in part for part in parts)
    assert not any("\ufffd" in part for part in parts)


def test_bytes_that_never_become_a_character_are_shown_at_the_end(load: Callable[[str], Tokenizer]) -> None:
    tokenizer = load("byte_level")
    cut = tokenizer.encode("🦉", add_special_tokens=False)[:-1]
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert detokenizer.push(cut) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_work_per_token_does_not_grow_with_the_text(load: Callable[[str], Tokenizer]) -> None:
    """Counted in ids decoded, not in seconds: each token is decoded a bounded number of times."""
    tokenizer = load("llama_like")
    decoded = 0

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(tokenizer, name)

        def decode(self, ids: list[int], **options: bool) -> str:
            nonlocal decoded
            decoded += len(ids)
            return tokenizer.decode(ids, **options)

    for text in ("the mill turns " * 200, "🦉" * 200):
        decoded, ids = 0, tokenizer.encode(text, add_special_tokens=False)
        detokenizer = IncrementalDetokenizer(Counting())  # type: ignore[arg-type]
        for token_id in ids:
            detokenizer.push([token_id])
        detokenizer.flush()
        assert decoded <= 4 * len(ids)


@pytest.mark.parametrize("kind", ["byte_level", "llama_like", "gemma_like", "metaspace"])
def test_a_continuation_keeps_the_space_before_its_first_word(load: Callable[[str], Tokenizer], kind: str) -> None:
    tokenizer = load(kind)
    ids = tokenizer.encode("Hello world! The mill turns.", add_special_tokens=True)
    rests = {n: tokenizer.decode(ids)[len(tokenizer.decode(ids[:n])) :] for n in range(2, len(ids))}
    assert any(rest.startswith(" ") for rest in rests.values())
    for cut, rest in rests.items():
        detokenizer = IncrementalDetokenizer(tokenizer, after=ids[:cut])
        assert detokenizer.push(ids[cut:]) + detokenizer.flush() == rest


def test_the_first_words_of_an_answer_have_no_space_before_them(load: Callable[[str], Tokenizer]) -> None:
    tokenizer = load("llama_like")
    bos, *ids = tokenizer.encode("The mill", add_special_tokens=True)
    assert bos in tokenizer.special_ids
    detokenizer = IncrementalDetokenizer(tokenizer, after=[bos])
    assert detokenizer.push(ids) + detokenizer.flush() == "The mill"
