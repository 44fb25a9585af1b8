"""Slots, admissions and a slow oracle of sampling for the worker's tests."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

import kvarn
from kvarn.config.engine import EngineConfig
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.engine.plan import KVConnector, NewSequence
from kvarn.models import Decoder, load_model
from kvarn.models.adapters import LoadedAdapter
from kvarn.wire.messages import FinishReason, PositionLogprobs, Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.async_executor import AsyncExecutor
from kvarn.worker.executor import InProcessExecutor
from kvarn.worker.proposers.eagle import EagleProposer
from kvarn.worker.slots import SlotTable


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_admission(
    slot: int, prompt: list[int] | None = None, output: list[int] | None = None, **sampling: Any
) -> NewSequence:
    sampling.setdefault("seed", slot)
    params = SamplingParams(**sampling)
    return NewSequence(slot, params, params.seed, prompt if prompt is not None else [0], output or [])


@pytest.fixture(scope="session")
def admission() -> Callable[..., NewSequence]:
    return make_admission


@pytest.fixture(scope="session")
def slot_table() -> Callable[..., SlotTable]:
    """A table with one admitted slot for each dictionary of sampling parameters (and `prompt`, `output`)."""

    def build(vocab_size: int, requests: list[dict[str, Any]]) -> SlotTable:
        slots = SlotTable(max(1, len(requests)), 256, vocab_size)
        for slot, request in enumerate(requests):
            slots.admit(make_admission(slot, **request))
        return slots

    return build


def oracle_logits(logits: list[float], prompt: list[int], output: list[int], params: SamplingParams) -> list[float]:
    """Masks, bias and penalties, token by token."""
    result = list(logits)
    banned = {
        word[-1]
        for word in params.bad_words
        if [*prompt, *output][len(prompt) + len(output) - len(word) + 1 :] == word[:-1]
    }
    if len(output) < params.min_tokens:
        banned |= set(params.stop_token_ids)
    for token, value in enumerate(logits):
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            value = -math.inf
        if token in banned:
            value = -math.inf
        value += params.logit_bias.get(token, 0.0)
        if token in prompt or token in output:
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        value -= params.frequency_penalty * output.count(token)
        value -= params.presence_penalty * (token in output)
        result[token] = value
    return result


@pytest.fixture(scope="session")
def oracle() -> Callable[..., list[float]]:
    return oracle_logits


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Directory of a small random checkpoint, float32, of the family named `llama` or `qwen3`."""

    @cache
    def build(family: str) -> Path:
        import transformers

        shape: dict[str, Any] = {
            "vocab_size": 500,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 512,
            "initializer_range": 0.2,
            "tie_word_embeddings": family == "qwen3",
            "eos_token_id": 1,
            "bos_token_id": 0,
            "pad_token_id": 0,
        }
        torch.manual_seed(7)
        if family == "llama":
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))
        else:
            model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**shape))
        path = tmp_path_factory.mktemp(family)
        model.to(torch.float32).save_pretrained(path)
        return path

    return build


@pytest.fixture(scope="session")
def tiny_model(tiny_checkpoint: Callable[[str], Path]) -> Callable[[str], Decoder]:
    """The same checkpoint loaded in float32; `kvarn-demo` is the packaged model."""

    @cache
    def load(family: str) -> Decoder:
        packaged = Path(kvarn.__file__).parent / "assets" / family
        model = load_model(packaged if packaged.is_dir() else tiny_checkpoint(family), dtype="float32")
        assert isinstance(model, Decoder)
        return model

    return load


class Answer:
    """What one choice of a request got."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[PositionLogprobs] = []
        self.prompt_logprobs: list[PositionLogprobs | None] | None = None
        self.finish_reason: FinishReason | None = None
        self.cached_tokens = 0


class Stack:
    """A real engine over a real executor, driven to the end of its requests."""

    def __init__(
        self,
        model: Decoder,
        *,
        num_blocks: int = 512,
        max_num_seqs: int = 64,
        token_budget: int = 512,
        plans_ahead: bool = False,
        connector: KVConnector | None = None,
        eagle: EagleProposer | None = None,
        prefix_cache: bool = True,
        num_snapshots: int = 24,
        adapters: Mapping[str, LoadedAdapter] | None = None,
        executor_type: type[InProcessExecutor] = InProcessExecutor,
        **engine: Any,
    ) -> None:
        snapshots = num_snapshots if model.spec.has_states else None
        if plans_ahead:
            executor_type = AsyncExecutor
        executor = executor_type(
            model,
            num_blocks=num_blocks,
            max_num_seqs=max_num_seqs,
            num_snapshots=snapshots or 0,
            connector=connector,
            eagle=eagle,
        )
        for name, adapter in (adapters or {}).items():
            executor.adapters.add(name, adapter.packed)
        self.executor = executor
        config = EngineConfig(
            max_num_seqs=max_num_seqs, token_budget=token_budget, tpot_target_ms=1e9, prefix_cache=prefix_cache
        )
        self._ticks = count()
        self.engine = EngineCore(
            EngineParts(
                self.executor,
                config,
                connector=connector,
                adapters=executor.adapters if adapters else None,
                num_snapshots=snapshots,
                **engine,
            ),
            lambda: next(self._ticks) * 0.01,
        )

    def generate(self, requests: list[Submit]) -> dict[tuple[str, int], Answer]:
        """All choices of the requests by (request id, choice)."""
        answers: dict[tuple[str, int], Answer] = defaultdict(Answer)
        for request in requests:
            self.engine.add(request)
        while self.engine.has_work():
            output = self.engine.step()
            assert not output.refused
            for delta in output.deltas:
                answer = answers[delta.request_id, delta.index]
                answer.token_ids += delta.token_ids
                answer.logprobs += delta.logprobs or []
                answer.prompt_logprobs = delta.prompt_logprobs or answer.prompt_logprobs
                answer.finish_reason = delta.finish_reason or answer.finish_reason
                answer.cached_tokens += delta.cached_tokens
        self.engine.check_integrity()
        return answers

    def tokens(self, requests: list[Submit]) -> dict[tuple[str, int], list[int]]:
        """The tokens alone."""
        return {key: answer.token_ids for key, answer in self.generate(requests).items()}


@pytest.fixture(scope="session")
def stack() -> type[Stack]:
    return Stack


@pytest.fixture(scope="session")
def demo_prompt() -> list[int]:
    """Token ids of a question that kvarn-demo was trained to answer at length."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(Path(kvarn.__file__).parent / "assets" / "kvarn-demo")
    conversation = [{"role": "user", "content": "Explain LLM serving in detail."}]
    text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(text, add_special_tokens=False))
