"""A small vocabulary, and the masks of single requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvarn.grammar.masks import GrammarMask, GrammarMasks
from kvarn.grammar.vocabulary import Vocabulary
from kvarn.wire.messages import Grammar, Submit
from kvarn.wire.sampling import SamplingParams
from small_vocabulary import END, MERGED, PADDED, small_tokenizer


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return Vocabulary(small_tokenizer(MERGED), PADDED, [END])


@pytest.fixture(scope="session")
def masks(vocabulary: Vocabulary) -> Iterator[GrammarMasks]:
    made = GrammarMasks(vocabulary)
    yield made
    made.shutdown()


@pytest.fixture
def mask_of(masks: GrammarMasks) -> Callable[..., GrammarMask]:
    """The mask of a request with this grammar, ready."""

    def make(text: str, **fields: Any) -> GrammarMask:
        grammar = Grammar(text=text, **fields)
        mask = masks(Submit(request_id="r", prompt_token_ids=[1], sampling=SamplingParams(seed=1), grammar=grammar))
        assert mask is not None
        mask._matcher.exception(timeout=10)  # built in a thread
        return mask

    return make
