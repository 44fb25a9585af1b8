"""R16: a request's tokens are its own, whatever happens around it.

One set of requests (greedy, sampled, with penalties) on small random float32 models; each way to run them must give the
tokens that each request gets alone.

The compiled kernels give each row's logits the same bits in any company, and the sampler is exact for equal logits, so
equality is no luck: kvarn-demo with random prompts in chunks, at temperature 1, used to change a token now and then.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvarn.models import Decoder
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams

Models = Callable[[str], Decoder]
Tokens = dict[tuple[str, int], list[int]]
FAMILIES = ["llama", "qwen3", "kvarn-demo"]

KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
    {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"temperature": 1.2, "top_p": 0.95, "presence_penalty": 0.7, "repetition_penalty": 1.1},
    {"temperature": 0.9, "min_p": 0.02, "logprobs": 2, "bad_words": [[5], [6, 7]]},
    {"temperature": 0.7, "n": 3},
    {"temperature": 1.0, "top_k": 40, "stop_token_ids": [1, 2, 3], "min_tokens": 20},
]


def make_requests(count: int, longest_prompt: int = 90, max_tokens: int = 24) -> list[Submit]:
    generator = torch.Generator().manual_seed(5)
    requests = []
    for index in range(count):
        length = int(torch.randint(2, longest_prompt, (1,), generator=generator))
        prompt = torch.randint(4, 500, (length,), generator=generator).tolist()
        sampling = SamplingParams(seed=100 + index, max_tokens=max_tokens, **KINDS[index % len(KINDS)])
        requests.append(Submit(request_id=f"r{index}", prompt_token_ids=prompt, sampling=sampling))
    return requests


def tokens_of(answers: dict[tuple[str, int], Any]) -> Tokens:
    return {key: answer.token_ids for key, answer in answers.items()}


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tiny_model: Models) -> Decoder:
    return tiny_model(request.param)


@pytest.fixture(scope="module")
def requests() -> list[Submit]:
    return make_requests(32)


@pytest.fixture(scope="module")
def alone(stack: Any, model: Decoder, requests: list[Submit]) -> Tokens:
    """What each request gets with the engine to itself."""
    tokens: Tokens = {}
    for request in requests:
        tokens |= tokens_of(stack(model).generate([request]))
    # A trained model ends some answers at once, in the same way; most differ, so that a mix-up would show.
    assert len({tuple(answer) for answer in tokens.values()}) > 0.7 * len(tokens)
    return tokens


def test_in_a_batch_of_32(stack: Any, model: Decoder, requests: list[Submit], alone: Tokens) -> None:
    assert tokens_of(stack(model).generate(requests)) == alone


def test_after_preemption(stack: Any, model: Decoder, requests: list[Submit], alone: Tokens) -> None:
    run = stack(model, num_blocks=32)  # a full context of the model; the batch would need 300
    assert tokens_of(run.generate(requests)) == alone
    assert run.engine.stats().preemptions_total >= 10


def test_after_a_prefix_hit(stack: Any, model: Decoder, requests: list[Submit], alone: Tokens) -> None:
    run = stack(model)
    run.generate(requests)
    again = run.generate(requests)
    assert tokens_of(again) == alone
    cached = {key[0]: answer.cached_tokens for key, answer in again.items() if key[1] == 0}
    for request in requests:
        assert cached[request.request_id] == (len(request.prompt_token_ids) - 1) // 16 * 16


@pytest.mark.parametrize("token_budget", [17, 64])
def test_with_prompts_in_chunks(
    stack: Any, model: Decoder, requests: list[Submit], alone: Tokens, token_budget: int
) -> None:
    assert tokens_of(stack(model, token_budget=token_budget).generate(requests)) == alone


def test_choices_are_those_of_the_request_run_alone(stack: Any, model: Decoder, requests: list[Submit]) -> None:
    """Choice 0 of n = 4 is the answer of n = 1, and choice i does not depend on how many follow it."""
    base = requests[1]
    by_n = {}
    for n in (1, 2, 4):
        sampling = SamplingParams(seed=9, max_tokens=24, temperature=1.0, presence_penalty=0.3, n=n)
        request = Submit(request_id="x", prompt_token_ids=base.prompt_token_ids, sampling=sampling)
        by_n[n] = tokens_of(stack(model).generate([request]))
    assert by_n[4][("x", 0)] == by_n[2][("x", 0)] == by_n[1][("x", 0)]
    assert by_n[4][("x", 1)] == by_n[2][("x", 1)]
    assert len({tuple(tokens) for tokens in by_n[4].values()}) == 4
