"""Speculation by an EAGLE-3 head: tokens stay the same, and guesses do not depend on how the tokens were computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvarn
from kvarn.config.speculation import SpeculationConfig
from kvarn.models import Decoder
from kvarn.models.eagle import load_eagle_head
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.proposers.eagle import EagleProposer

ASSETS = Path(kvarn.__file__).parent / "assets"
HEAD = ASSETS / "kvarn-demo-eagle3"
CONFIG = SpeculationConfig(method="eagle3", model=str(HEAD), adaptive=False, num_speculative_tokens=4)


@pytest.fixture
def speculating(stack: Any, tiny_model: Callable[[str], Decoder]) -> Callable[..., Any]:
    """An engine over kvarn-demo whose tokens the packaged head guesses."""

    def build(config: SpeculationConfig = CONFIG, **options: Any) -> Any:
        model = tiny_model("kvarn-demo")
        sizes = {"num_blocks": 512, "max_num_seqs": 64} | options
        blocks, slots = sizes["num_blocks"], sizes["max_num_seqs"]
        proposer = EagleProposer(load_eagle_head(HEAD, model), num_blocks=blocks, max_num_seqs=slots)
        return stack(model, eagle=proposer, proposer=proposer, speculation=config, **sizes)

    return build


def question(request_id: str, prompt: list[int], **sampling: Any) -> Submit:
    chosen = {"seed": 5, "temperature": 0.0, "max_tokens": 60} | sampling
    return Submit(request_id=request_id, prompt_token_ids=prompt, sampling=SamplingParams(**chosen))


@pytest.mark.parametrize("options", [{"num_blocks": 24, "max_num_seqs": 6}, {"plans_ahead": True}], ids=str)
def test_an_adaptive_head_changes_no_token(stack, speculating, tiny_model, options):
    """Fixed lengths, and other features beside the head, are in tests/replica/test_features_together.py."""
    samplings: list[dict[str, Any]] = [{}, {"temperature": 0.5, "n": 3}, {"logprobs": 1, "repetition_penalty": 1.2}]
    messages = [
        question(f"r{index}", [80 + (i * i + index) % 40 for i in range(30 + index)], seed=index, **sampling)
        for index, sampling in enumerate(samplings * 2)
    ]
    plain = stack(tiny_model("kvarn-demo")).tokens(messages)
    assert speculating(SpeculationConfig(method="eagle3", model=str(HEAD)), **options).tokens(messages) == plain


def accepted(served: Any, *requests: Submit) -> tuple[int, int]:
    """Proposed and accepted tokens of these requests."""
    before = served.engine.stats()
    served.generate(list(requests))
    after = served.engine.stats()
    return (
        after.speculation.draft_tokens_total - before.speculation.draft_tokens_total,
        after.speculation.accepted_tokens_total - before.speculation.accepted_tokens_total,
    )


def test_guesses_do_not_depend_on_chunks_or_prefix_hits(speculating, demo_prompt):
    asked = question("a", demo_prompt)
    served = speculating()
    whole = accepted(served, asked)
    assert accepted(served, asked) == whole, "with the prompt from the prefix cache"
    assert accepted(speculating(token_budget=24), asked) == whole, "in chunks"
    assert whole[1] > 0


def test_a_trained_head_is_mostly_right(speculating: Callable[..., Any], demo_prompt: list[int]) -> None:
    proposed, right = accepted(speculating(), question("a", demo_prompt))
    assert right > 0.6 * proposed


def test_a_reused_slot_gets_no_guess_of_the_sequence_before(speculating, stack, tiny_model, demo_prompt):
    """One slot: each request follows another, of the same length, in the same slot."""
    requests = [question(f"r{index}", demo_prompt[index:] + demo_prompt[:index], max_tokens=20) for index in range(4)]
    plain = stack(tiny_model("kvarn-demo"), max_num_seqs=1).tokens(requests)
    assert speculating(max_num_seqs=1).tokens(requests) == plain
