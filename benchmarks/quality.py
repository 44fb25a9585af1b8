"""What quantization costs: exact answers of the golden set, and perplexity, for each form of the weights and the cache.

    python -m benchmarks.quality --kernels auto

The model is the packaged kvarn-demo, the questions are those of its golden set, answered greedily by the real engine.
Perplexity is that of the expected answers after their questions, apart for those questions that the model's training
held out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import kvarn
from kvarn.config.engine import EngineConfig
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.kernels.batch import PagedBatch
from kvarn.kernels.errors import UnsupportedByBackendError
from kvarn.models import Decoder, load_model
from kvarn.text.chat_template import ChatTemplate
from kvarn.text.tokenizer import Tokenizer
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.executor import InProcessExecutor

ASSETS = Path(kvarn.__file__).parent / "assets"
MODEL = ASSETS / "kvarn-demo"
BLOCK = 16


@dataclass(frozen=True)
class Variant:
    """One form of the weights and of the cache."""

    name: str
    options: dict[str, Any]
    plain_head: bool = False


VARIANTS = (
    Variant("float32", {"dtype": "float32"}),
    Variant("bfloat16", {"dtype": "bfloat16"}),
    Variant("int8", {"quantization": "int8"}),
    Variant("int8, head plain", {"quantization": "int8"}, plain_head=True),
    Variant("int4", {"quantization": "int4"}),
    Variant("int4, head plain", {"quantization": "int4"}, plain_head=True),
    Variant("bfloat16, KV int8", {"dtype": "bfloat16", "kv_cache_dtype": "int8"}),
    Variant("int8, KV int8", {"quantization": "int8", "kv_cache_dtype": "int8"}),
)


@dataclass(frozen=True)
class Question:
    """One entry of the golden set."""

    prompt: list[int]
    answer: str
    answer_ids: list[int]
    held_out: bool


async def rendered(entries: Sequence[dict[str, Any]]) -> list[str]:
    """The prompts of chats."""
    template = ChatTemplate.load(MODEL)
    try:
        return [await template.render(template.request(e["messages"], tools=e.get("tools"))) for e in entries]
    finally:
        await template.close()


def questions(tokenizer: Tokenizer, every: int) -> list[Question]:
    """The golden set, or each `every`-th entry of it."""
    lines = (ASSETS / "golden.jsonl").read_text(encoding="utf-8").splitlines()[::every]
    entries = [json.loads(line) for line in lines]
    found = []
    for entry, text in zip(entries, asyncio.run(rendered(entries)), strict=True):
        prompt = tokenizer.encode(text, add_special_tokens=False)
        answer_ids = tokenizer.encode(entry["answer"], add_special_tokens=False)
        found.append(Question(prompt, entry["answer"].strip(), answer_ids, entry["held_out"]))
    return found


def exact_answers(model: Decoder, tokenizer: Tokenizer, asked: Sequence[Question]) -> int:
    """How many questions are answered word for word."""
    config = EngineConfig(max_num_seqs=64, token_budget=512, tpot_target_ms=1e9)
    engine = EngineCore(EngineParts(InProcessExecutor(model, num_blocks=4096, max_num_seqs=64), config), time.monotonic)
    sampling = SamplingParams(seed=0, temperature=0.0, max_tokens=300, stop_token_ids=list(tokenizer.eos_token_ids))
    for index, question in enumerate(asked):
        engine.add(Submit(request_id=str(index), prompt_token_ids=question.prompt, sampling=sampling))
    answers: dict[int, list[int]] = defaultdict(list)
    while engine.has_work():
        for delta in engine.step().deltas:
            answers[int(delta.request_id)] += delta.token_ids
    return sum(tokenizer.decode(answers[i]).strip() == question.answer for i, question in enumerate(asked))


def loss(model: Decoder, token_ids: Sequence[int], first: int) -> float:
    """Summed negative log-likelihood of the tokens from number `first` on."""
    count = len(token_ids)
    blocks = -(-count // BLOCK)
    batch = PagedBatch(
        positions=torch.arange(count),
        query_starts=torch.tensor([0, count], dtype=torch.int32),
        context_lens=torch.tensor([count], dtype=torch.int32),
        block_tables=torch.arange(blocks, dtype=torch.int32)[None],
        slot_mapping=torch.arange(count),
    )
    rows = torch.arange(first - 1, count - 1)
    logits = model.forward(torch.tensor(token_ids), batch, model.new_kv_cache(blocks), rows)
    following = torch.tensor(token_ids[first:])
    return float(torch.nn.functional.cross_entropy(logits, following, reduction="sum"))


def perplexity(model: Decoder, asked: Sequence[Question], *, held_out: bool) -> float:
    """Of the expected answers; NaN where no such question was asked."""
    chosen = [question for question in asked if question.held_out == held_out]
    if not chosen:
        return math.nan
    total = sum(loss(model, q.prompt + q.answer_ids, len(q.prompt)) for q in chosen)
    return math.exp(total / sum(len(q.answer_ids) for q in chosen))


@contextmanager
def head_of(variant: Variant) -> Iterator[None]:
    """The output head stays plain where the variant says so."""
    if not variant.plain_head:
        yield
        return
    with patch("kvarn.specs.held.HEAD_QUANTIZATION", None):
        yield


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kernels", default="auto", choices=["auto", "cpu", "torch"])
    parser.add_argument("--every", type=int, default=1, help="ask every n-th question only")
    options = parser.parse_args()
    tokenizer = Tokenizer.load(MODEL)
    asked = questions(tokenizer, options.every)
    print("| weights | exact answers | perplexity, seen in training | perplexity, held out |\n|---|---|---|---|")
    for variant in VARIANTS:
        try:
            with head_of(variant):
                model = load_model(MODEL, kernels=options.kernels, **variant.options)
            assert isinstance(model, Decoder)
            right = exact_answers(model, tokenizer, asked)
        except UnsupportedByBackendError as error:
            print(f"| {variant.name} | not measured: {error} | | |", flush=True)
            continue
        figures = " | ".join(f"{perplexity(model, asked, held_out=side):.4f}" for side in (False, True))
        print(f"| {variant.name} | {right} of {len(asked)} ({right / len(asked):.1%}) | {figures} |", flush=True)


if __name__ == "__main__":
    main()
