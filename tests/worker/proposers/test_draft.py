"""The draft model: its guesses are its own greedy continuation, whatever its cache holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.config.speculation import SpeculationConfig
from kvarn.models import Decoder
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.proposers.draft import DraftProposer
from profiles import examples
from sequences import make_sequence


@pytest.fixture(scope="module")
def continuation(stack: Any, tiny_model: Callable[[str], Decoder]) -> Callable[[list[int], int], list[int]]:
    """What the draft model writes by itself."""
    alone = stack(tiny_model("kvarn-demo-draft"), prefix_cache=True)

    def write(tokens: list[int], count: int) -> list[int]:
        sampling = SamplingParams(seed=0, temperature=0.0, max_tokens=count)
        message = Submit(request_id="a", prompt_token_ids=tokens, sampling=sampling)
        return alone.generate([message])["a", 0].token_ids

    return write


turns = st.lists(
    st.tuples(
        st.integers(0, 3),  # the sequence
        st.integers(1, 6),  # tokens to guess
        st.integers(0, 6),  # of those that come true
        st.integers(0, 30),  # tokens that follow from elsewhere
    ),
    min_size=1,
    max_size=10,
)


@settings(max_examples=examples(12), derandomize=True, deadline=None)
@given(turns=turns, num_blocks=st.sampled_from([6, 9, 64]), catch_up=st.sampled_from([8, 256]))
def test_guesses_are_the_draft_models_own_tokens(tiny_model, continuation, turns, num_blocks, catch_up):
    """Sequences go on with guesses that came true and others that did not, and lose their blocks to each other."""
    proposer = DraftProposer(tiny_model("kvarn-demo-draft"), num_blocks=num_blocks, vocab_size=4096)
    proposer.CATCH_UP, proposer.FEW = catch_up, 4
    sequences = [make_sequence([100 + 7 * index + i % 5 for i in range(20 + index)]) for index in range(4)]
    guessed = 0
    for index, length, right, others in turns:
        wanted = [(sequences[index], length), (sequences[(index + 1) % 4], 2)]
        for (sequence, limit), guess in zip(wanted, proposer.propose(wanted), strict=True):
            assert guess.tokens in ([], continuation(sequence.tokens, limit))
            guessed += len(guess.tokens)
            sequence.tokens += [*guess.tokens[:right], *[(300 + i) % 4096 for i in range(others)]]
    if num_blocks == 64 and catch_up == 256:
        assert guessed == sum(length + 2 for _, length, _, _ in turns)
    for sequence in sequences:
        proposer.forget(sequence)
    proposer.CATCH_UP = 4096
    whole = make_sequence([100 + i % 50 for i in range(num_blocks * 16 - 1)])
    assert len(proposer.propose([(whole, 1)])[0].tokens) == 1, "all blocks are free again"


def test_a_long_prompt_is_caught_up_with_in_parts(tiny_model: Callable[[str], Decoder], continuation: Any) -> None:
    proposer = DraftProposer(tiny_model("kvarn-demo-draft"), num_blocks=64, vocab_size=4096)
    sequence = make_sequence([100 + i % 50 for i in range(900)])
    calls = [proposer.propose([(sequence, 3)])[0].tokens for _ in range(4)]
    assert calls == [[], [], [], continuation(sequence.tokens, 3)]


def test_no_guess_reaches_past_the_draft_models_context(tiny_model: Callable[[str], Decoder]) -> None:
    proposer = DraftProposer(tiny_model("kvarn-demo-draft"), num_blocks=256, vocab_size=4096)
    proposer.CATCH_UP = 4096
    sequence = make_sequence([100 + i % 50 for i in range(2046)])
    assert [len(proposer.propose([(sequence, length)])[0].tokens) for length in (3, 2)] == [0, 2]


def test_an_adaptive_draft_model_changes_no_token(stack: Any, tiny_model: Callable[[str], Decoder]) -> None:
    """Fixed lengths, and other features beside the draft model, are in tests/replica/test_features_together.py."""
    samplings: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.5, "n": 3},
        {"temperature": 0.0, "logprobs": 1, "repetition_penalty": 1.2},
    ]
    messages = [
        Submit(
            request_id=f"r{index}",
            prompt_token_ids=[80 + (i * i + index) % 40 for i in range(30 + index)],
            sampling=SamplingParams(seed=index, max_tokens=50, **sampling),
        )
        for index, sampling in enumerate(samplings * 2)
    ]
    plain = stack(tiny_model("kvarn-demo")).tokens(messages)
    proposer = DraftProposer(tiny_model("kvarn-demo-draft"), num_blocks=40, vocab_size=4096)
    config = SpeculationConfig(method="draft_model", model="kvarn-demo-draft")
    assert (
        stack(tiny_model("kvarn-demo"), proposer=proposer, speculation=config, plans_ahead=True).tokens(messages)
        == plain
    )


def test_tokens_that_the_draft_model_does_not_have_get_no_guess(tiny_model: Callable[[str], Decoder]) -> None:
    """The large model's vocabulary may be padded further."""
    proposer = DraftProposer(tiny_model("kvarn-demo-draft"), num_blocks=64, vocab_size=5000)
    odd, plain = make_sequence([100, 4100, 101]), make_sequence([100, 200, 101])
    none, some = proposer.propose([(odd, 3), (plain, 3)])
    assert none.tokens == [] and len(some.tokens) == 3
