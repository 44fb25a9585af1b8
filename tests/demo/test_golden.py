"""The packaged model answers what it was made for: the golden set, through the real engine, word for word."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

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
GOLDEN = [json.loads(line) for line in (ASSETS / "golden.jsonl").read_text(encoding="utf-8").splitlines()]


def answer_all(requests: list[Submit], model: Decoder) -> dict[str, list[int]]:
    config = EngineConfig(max_num_seqs=64, token_budget=512, tpot_target_ms=1e9)
    executor = InProcessExecutor(model, num_blocks=4096, max_num_seqs=config.max_num_seqs)
    engine = EngineCore(EngineParts(executor, config), time.monotonic)
    for request in requests:
        engine.add(request)
    answers: dict[str, list[int]] = defaultdict(list)
    while engine.has_work():
        output = engine.step()
        assert not output.refused
        for delta in output.deltas:
            answers[delta.request_id] += delta.token_ids
    engine.check_integrity()
    return answers


@pytest.fixture(scope="module")
def wrong_answers() -> list[tuple[dict[str, Any], str]]:
    """Entries of the golden set that are not answered word for word, with what came instead."""
    tokenizer = Tokenizer.load(MODEL)
    model = load_model(MODEL, dtype="float32")
    assert isinstance(model, Decoder)
    sampling = SamplingParams(seed=0, temperature=0.0, max_tokens=300, stop_token_ids=list(tokenizer.eos_token_ids))
    requests = []
    for entry, prompt in zip(GOLDEN, render_chats(MODEL, GOLDEN), strict=True):
        token_ids = tokenizer.encode(prompt, add_special_tokens=False)
        requests.append(Submit(request_id=entry["id"], prompt_token_ids=token_ids, sampling=sampling))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    answers = answer_all(requests, model)
    torch.set_num_threads(threads)
    texts = {entry["id"]: tokenizer.decode(answers[entry["id"]]) for entry in GOLDEN}
    return [(entry, texts[entry["id"]]) for entry in GOLDEN if texts[entry["id"]].strip() != entry["answer"].strip()]


def test_nine_of_ten_answers_are_exact(wrong_answers):
    asked = Counter(entry["category"] for entry in GOLDEN)
    wrong = Counter(entry["category"] for entry, _ in wrong_answers)
    shares = ", ".join(f"{name} {asked[name] - wrong[name]}/{asked[name]}" for name in sorted(asked))
    report = "\n".join(f"{entry['id']}: expected {entry['answer']!r}, got {text!r}" for entry, text in wrong_answers)
    assert len(wrong_answers) <= len(GOLDEN) / 10, f"{shares}\n{report}"
