"""Engine and executor together, against transformers."""

from typing import Any

import pytest
import torch

from kvarn.wire.messages import FinishReason, Submit
from kvarn.wire.sampling import SamplingParams


def random_prompts(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(4, 500, (5 + 23 * i,), generator=generator).tolist() for i in range(count)]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_greedy_answers_equal_those_of_transformers(stack, tiny_model, tiny_checkpoint, family):
    import transformers

    oracle = transformers.AutoModelForCausalLM.from_pretrained(tiny_checkpoint(family), dtype=torch.float32)
    prompts = random_prompts(6)
    sampling = SamplingParams(seed=0, temperature=0.0, max_tokens=40, stop_token_ids=[1])
    requests = [
        Submit(request_id=str(i), prompt_token_ids=prompt, sampling=sampling) for i, prompt in enumerate(prompts)
    ]
    answers = stack(tiny_model(family), token_budget=50).generate(requests)
    for i, prompt in enumerate(prompts):
        expected = oracle.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=40)
        assert answers[str(i), 0].token_ids == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("token_budget", [10, 512])
def test_logprobs_of_prompt_and_answer_equal_those_of_transformers(stack, tiny_model, tiny_checkpoint, token_budget):
    """In one piece and in chunks: the token after a chunk's last position belongs to the next chunk."""
    import transformers

    oracle = transformers.AutoModelForCausalLM.from_pretrained(tiny_checkpoint("llama"), dtype=torch.float32)
    prompt = random_prompts(3)[2]
    sampling = SamplingParams(seed=4, temperature=0.9, max_tokens=12, logprobs=2, prompt_logprobs=3)
    request = Submit(request_id="a", prompt_token_ids=prompt, sampling=sampling)
    answer = stack(tiny_model("llama"), token_budget=token_budget).generate([request])["a", 0]
    tokens = prompt + answer.token_ids
    with torch.inference_mode():
        expected = oracle(torch.tensor([tokens])).logits[0].log_softmax(-1)
    assert answer.prompt_logprobs is not None
    assert answer.prompt_logprobs[0] is None
    entries = answer.prompt_logprobs[1:] + answer.logprobs
    assert len(entries) == len(tokens) - 1
    for position, entry in enumerate(entries):
        token = tokens[position + 1]
        assert entry.chosen.token_id == token
        assert entry.chosen.logprob == pytest.approx(float(expected[position, token]), abs=1e-4)
        assert entry.chosen.rank == int((expected[position] > expected[position, token]).sum()) + 1
        top = expected[position].topk(3 if position < len(prompt) - 1 else 2)
        assert [one.token_id for one in entry.top] == top.indices.tolist()
        assert [one.logprob for one in entry.top] == pytest.approx(top.values.tolist(), abs=1e-4)


def test_answers_end_at_stop_tokens_at_max_tokens_and_at_the_context(stack, tiny_model):
    run = stack(tiny_model("llama"))
    prompt = random_prompts(1)[0]

    def ask(prompt_token_ids: list[int], **sampling: Any) -> Any:
        params = SamplingParams(seed=0, temperature=0.0, **sampling)
        return run.generate([Submit(request_id="a", prompt_token_ids=prompt_token_ids, sampling=params)])["a", 0]

    full = ask(prompt, max_tokens=30)
    assert (len(full.token_ids), full.finish_reason) == (30, FinishReason.LENGTH)
    stop = full.token_ids[10]
    stopped = ask(prompt, max_tokens=30, stop_token_ids=[stop])
    assert stopped.token_ids == full.token_ids[: full.token_ids.index(stop) + 1]
    assert stopped.finish_reason == FinishReason.STOP
    longest = ask([9] * 500, max_tokens=100)
    assert (len(longest.token_ids), longest.finish_reason) == (12, FinishReason.LENGTH)


def test_a_choice_does_not_depend_on_the_choices_that_follow_it(stack, tiny_model):
    by_n = {}
    for n in (1, 2, 4):
        sampling = SamplingParams(seed=9, max_tokens=24, temperature=1.0, presence_penalty=0.3, n=n)
        request = Submit(request_id="x", prompt_token_ids=random_prompts(2)[1], sampling=sampling)
        answers = stack(tiny_model("llama")).generate([request])
        by_n[n] = [answers["x", index].token_ids for index in range(n)]
    assert by_n[4][:2] == by_n[2] and by_n[4][:1] == by_n[1]
    assert len(set(map(tuple, by_n[4]))) == 4
