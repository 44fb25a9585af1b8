"""Adapters through the whole engine: R16 in any company, and blocks that are never another adapter's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvarn.kernels.dispatch import kernels_for
from kvarn.models import Decoder, load_model
from kvarn.models.adapters import LoadedAdapter, load_adapter
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from tiny_adapters import make_adapter
from tiny_checkpoints import make_decoder

pytest.importorskip("kvarn.kernels.cpu._native", reason="Kvarn was installed without its compiled kernels")

Served = tuple[Decoder, dict[str, LoadedAdapter]]
NAMES = ["", "one", "two", "three"]


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str | None], tuple[Decoder, dict[str, LoadedAdapter]]]:
    """A model in each form of weights, with three adapters of different ranks."""
    path = tmp_path_factory.mktemp("qwen3")
    oracle = make_decoder("qwen3", path)
    for seed, rank in enumerate((3, 8, 20)):
        make_adapter(oracle, path / NAMES[seed + 1], seed=seed, r=rank)

    def load(quantization: str | None) -> Served:
        model = load_model(path, dtype="bfloat16", quantization=quantization)
        assert isinstance(model, Decoder)
        return model, {name: load_adapter(path / name, model) for name in NAMES[1:]}

    return load


def requests(count: int = 12) -> list[Submit]:
    """Prompts of all lengths, with each adapter and none, greedy and sampled; each prompt twice."""
    generator = torch.Generator().manual_seed(4)
    prompts = [torch.randint(3, 199, (length,), generator=generator).tolist() for length in (40, 7, 65)]
    return [
        Submit(
            request_id=f"r{index}",
            prompt_token_ids=prompts[index % 3],
            sampling=SamplingParams(
                seed=index, temperature=float(index % 2), max_tokens=9, logprobs=2, n=1 + index % 2
            ),
            adapter=NAMES[index % 4],
        )
        for index in range(count)
    ]


def found(served_by: Any, messages: list[Submit]) -> dict[Any, Any]:
    answers = served_by.generate(messages)
    return {key: (each.token_ids, each.logprobs) for key, each in answers.items()}


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_answers_are_equal_to_the_bit_alone_and_in_any_mix(served: Any, stack: Any, quantization: str | None) -> None:
    model, adapters = served(quantization)
    messages = requests()
    together = found(stack(model, adapters=adapters), messages)
    alone: dict[Any, Any] = {}
    for message in messages:
        alone |= found(stack(model, adapters=adapters, token_budget=13), [message])
    assert together == alone
    tight = stack(
        model, adapters=adapters, num_blocks=most_blocks(model, adapters) + 12, token_budget=31, max_num_seqs=5
    )
    assert found(tight, messages) == together
    residency = tight.engine.scheduler.memory.adapters
    assert residency.num_evictions > 0, "the pool was meant to be too small for all adapters"
    ahead = stack(model, adapters=adapters, plans_ahead=True, prefix_cache=False)
    assert found(ahead, messages) == together


def most_blocks(model: Decoder, adapters: dict[str, LoadedAdapter]) -> int:
    memory = model.new_adapter_memory(model.new_kv_cache(1))
    return max(memory.num_blocks(each.packed) for each in adapters.values())


def test_requests_without_adapter_have_the_bits_of_a_server_without_adapters(served: Any, stack: Any) -> None:
    model, adapters = served(None)
    messages = [message for message in requests() if not message.adapter]
    without = found(stack(model), messages)
    mixed = found(stack(model, adapters=adapters), requests())
    assert {key: value for key, value in mixed.items() if key in without} == without


def test_a_prompt_never_finds_blocks_of_another_adapter_or_of_another_version(served: Any, stack: Any) -> None:
    model, adapters = served(None)
    runs = stack(model, adapters={**adapters, "one, later": adapters["two"]})
    prompt, sampling = requests()[0].prompt_token_ids, SamplingParams(seed=1, temperature=0.0, max_tokens=4)
    cached = []
    for number, name in enumerate(["one", "one", "two", "", "one, later", "one"]):
        message = Submit(request_id=f"{number}", prompt_token_ids=prompt, sampling=sampling, adapter=name)
        cached.append(runs.generate([message])[f"{number}", 0].cached_tokens)
    assert cached == [0, 32, 0, 0, 0, 32]


def test_the_torch_kernels_draw_the_same_tokens(served: Any, stack: Any, tmp_path: Path) -> None:
    oracle = make_decoder("llama", tmp_path)
    make_adapter(oracle, tmp_path / "one", size=0.2)
    answers = []
    for kernels in ("torch", "cpu"):
        assert kernels_for(kernels)
        model = load_model(tmp_path, dtype="float32", kernels=kernels)
        runs = stack(model, adapters={"one": load_adapter(tmp_path / "one", model)})
        messages = [message for message in requests(4) if message.adapter in ("", "one")]
        answers.append({key: tokens for key, (tokens, _) in found(runs, messages).items()})
    assert answers[0] == answers[1]
