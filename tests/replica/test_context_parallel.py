"""Processes that share the tokens of long prompts give the tokens and log-probabilities of one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
import transformers

pytest.importorskip("kvarn.kernels.cpu._native", reason="torch's own products do not promise the order of their sums")

import kvarn
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from profiles import effort, thorough
from rank_services import Answers, build, requests, run

DEMO = Path(kvarn.__file__).parent / "assets" / "kvarn-demo"
ROOMY = {"max_context_length": 768, "engine": {"token_budget": 420, "max_num_seqs": 8}}
"""Prompts of up to 700 tokens in two chunks."""
LONG_PROMPT = effort(8_192, 131_072)


def messages() -> list[Submit]:
    return requests(range(200, 4000), 20, with_grammars=True, longest=700)


@cache
def demo_alone() -> Answers:
    service = build(DEMO, **ROOMY)
    answers = run(service, messages())
    service.shutdown()
    return answers


@pytest.mark.parametrize(
    "sizes",
    [
        thorough({"prefill_context_parallel_size": 3}),
        thorough({"prefill_context_parallel_size": 2, "pipeline_parallel_size": 2}),
    ],
    ids=str,
)
def test_answers_are_those_of_one_process(sizes: dict[str, int]) -> None:
    expected = demo_alone()
    service = build(DEMO, kv_cache_gib=0.02, **ROOMY, **sizes)
    answers = run(service, messages())
    service.shutdown()
    assert answers.keys() == expected.keys()
    for key, answer in answers.items():
        assert answer == expected[key], key


def test_a_very_long_prompt(tmp_path: Path) -> None:
    """128K tokens (thorough; else 8K) in chunks of 4,096."""
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=LONG_PROMPT + 16,
        initializer_range=0.5,
    )
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path)
    prompt = torch.randint(3, 64, (LONG_PROMPT,)).tolist()
    sampling = SamplingParams(seed=0, max_tokens=4, temperature=1.0, logprobs=5)
    request = Submit(request_id="long", prompt_token_ids=prompt, sampling=sampling)
    answers = []
    for ranks in (1, 2):
        service = build(
            tmp_path,
            max_context_length=LONG_PROMPT + 16,
            prefill_context_parallel_size=ranks,
            engine={"token_budget": 4096, "max_num_seqs": 1},
        )
        answers.append(run(service, [request]))
        service.shutdown()
    assert answers[0] == answers[1]
    ((tokens, logprobs, _),) = answers[0].values()
    assert len(tokens) == len(logprobs) == 4
