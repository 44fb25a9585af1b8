"""Encoded log-probabilities are what the objects of the API would be, encoded."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_replica import BOS
from kvarn.text.logprobs import LogprobsEncoder, in_parts
from kvarn.text.tokenizer import Tokenizer
from kvarn.wire.messages import PositionLogprobs, TokenLogprob
from kvarn.wire.openai.chat.answer import TokenLogprobs, TopLogprob
from kvarn.wire.openai.usage import PromptLogprob

entries = st.builds(
    TokenLogprob,
    st.integers(0, BOS + 20),  # bytes that are no characters, special tokens, ids above the vocabulary
    st.one_of(st.floats(max_value=0, allow_nan=False, width=32), st.sampled_from([-0.0, -1e-300, float("-inf")])),
    st.integers(1, 2**32 - 1),
)
positions = st.builds(PositionLogprobs.of, entries, st.lists(entries, max_size=4))


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return Tokenizer.load(checkpoint)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entries, st.lists(entries, max_size=4))
def test_packing_loses_nothing(chosen, top):
    packed = PositionLogprobs.of(chosen, top)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(packed), type=PositionLogprobs)
    assert (again.chosen, again.top) == (chosen, top)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(positions, max_size=3), st.integers(0, 5))
def test_the_shape_of_chat(tokenizer, given_positions, top):
    def fields(entry: TokenLogprob) -> dict[str, object]:
        data = tokenizer.token_bytes(entry.token_id)
        return {"token": tokenizer.token_text(entry.token_id), "logprob": entry.logprob, "bytes": list(data)}

    expected = [
        TokenLogprobs(**fields(each.chosen), top_logprobs=[TopLogprob(**fields(other)) for other in each.top[:top]])
        for each in given_positions
    ]
    encoded = LogprobsEncoder(tokenizer).chat(given_positions, top)
    assert msgspec.json.encode(encoded) == msgspec.json.encode(expected)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.none(), positions), max_size=3), st.integers(1, 5))
def test_the_older_shape(tokenizer, given_positions, top):
    encoded = LogprobsEncoder(tokenizer).completion([(each, 97, 5) for each in given_positions], top)
    expected: list[dict[str, float] | None] = []
    for each in given_positions:
        by_text: dict[str, float] = {}
        for entry in [] if each is None else [*each.top[:top], each.chosen]:
            by_text.setdefault(tokenizer.token_text(entry.token_id), entry.logprob)
        expected.append(None if each is None else by_text)
    assert msgspec.json.encode(encoded.top_logprobs) == msgspec.json.encode(expected)
    assert encoded.token_logprobs == [None if each is None else each.chosen.logprob for each in given_positions]
    assert (encoded.tokens, encoded.text_offset) == (["a"] * len(expected), [5] * len(expected))


async def test_the_shape_of_prompts_comes_in_parts(tokenizer):
    known = [PositionLogprobs.of(TokenLogprob(97, -0.5, 1), [TokenLogprob(98, -1.5, 2)])] * 150
    parts = [part async for part in in_parts([None, *known])]
    expected = {
        "97": PromptLogprob(logprob=-0.5, rank=1, decoded_token="a"),
        "98": PromptLogprob(logprob=-1.5, rank=2, decoded_token="b"),
    }
    assert [len(part) for part in parts] == [64, 64, 23]
    encoded = await LogprobsEncoder(tokenizer).prompt([None, *known])
    assert msgspec.json.encode(encoded) == msgspec.json.encode([None, *[expected] * 150])
