"""The packaged model gives a request the same tokens whatever else runs, on prompts that people send."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

import kvarn
from chat_prompts import render_chats
from kvarn.config.engine import EngineConfig
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.models import Decoder, load_model
from kvarn.text.tokenizer import Tokenizer
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.executor import InProcessExecutor

ASSETS = Path(kvarn.__file__).parent / "assets"
MODEL = ASSETS / "kvarn-demo"


@pytest.fixture(scope="module")
def model() -> Iterator[Decoder]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    loaded = load_model(MODEL, dtype="float32")
    assert isinstance(loaded, Decoder)
    yield loaded
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def requests() -> list[Submit]:
    """Thirty-two questions of the golden set, every second one sampled."""
    tokenizer = Tokenizer.load(MODEL)
    entries = [json.loads(line) for line in (ASSETS / "golden.jsonl").read_text(encoding="utf-8").splitlines()]
    found = []
    for number, prompt in enumerate(render_chats(MODEL, entries[:: len(entries) // 32][:32])):
        token_ids = tokenizer.encode(prompt, add_special_tokens=False)
        temperature = 0.7 if number % 2 else 0.0
        sampling = SamplingParams(
            seed=number, temperature=temperature, max_tokens=40, stop_token_ids=list(tokenizer.eos_token_ids)
        )
        found.append(Submit(request_id=str(number), prompt_token_ids=token_ids, sampling=sampling))
    return found


def run(engine: EngineCore, requests: list[Submit], urgent: list[Submit] | None = None) -> dict[str, list[int]]:
    """Answers by request; the urgent ones come when the others have run for five steps."""
    for request in requests:
        engine.add(request)
    answers: dict[str, list[int]] = defaultdict(list)
    steps = 0
    while engine.has_work():
        for delta in engine.step().deltas:
            answers[delta.request_id] += delta.token_ids
        steps += 1
        if steps == 5:
            for request in urgent or []:
                engine.add(request)
    engine.check_integrity()
    return answers


def make_engine(model: Decoder, num_blocks: int = 2048, **config: object) -> EngineCore:
    executor = InProcessExecutor(model, num_blocks=num_blocks, max_num_seqs=32, max_context_length=num_blocks * 16)
    settings = {"max_num_seqs": 32, "tpot_target_ms": 1e9, **config}
    return EngineCore(EngineParts(executor, EngineConfig.model_validate(settings)), time.monotonic)


@pytest.fixture(scope="module")
def alone(model: Decoder, requests: list[Submit]) -> dict[str, list[int]]:
    answers: dict[str, list[int]] = {}
    for request in requests:
        answers |= run(make_engine(model, num_blocks=64), [request])
    return answers


@pytest.mark.thorough
def test_in_a_batch_of_thirty_two(model, requests, alone):
    assert run(make_engine(model, num_blocks=128), requests) == alone


def test_after_preemption(model, requests, alone):
    engine = make_engine(model, num_blocks=128, max_num_seqs=8)
    patient = [msgspec.structs.replace(request, priority=10) for request in requests[:16]]
    assert run(engine, patient, urgent=requests[16:]) == alone
    assert engine.stats().preemptions_total > 0


def test_after_a_prefix_hit(model, requests, alone):
    engine = make_engine(model, num_blocks=128)
    run(engine, requests)
    assert run(engine, requests) == alone
    assert engine.stats().cached_tokens_total > 0


@pytest.mark.parametrize("token_budget", [17, 64])
def test_with_prompts_cut_into_chunks(model, requests, alone, token_budget):
    assert run(make_engine(model, num_blocks=128, token_budget=token_budget), requests) == alone
