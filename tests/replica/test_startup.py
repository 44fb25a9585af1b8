"""The start of an engine: its context, its draft model, its warm-up."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvarn.replica.server.startup.proposer import DraftModelError, check_vocabulary
from kvarn.replica.server.startup.warm_up import warm_up
from kvarn.shapes import BLOCK_SIZE
from kvarn.wire.messages import StepOutput, Submit
from kvarn.wire.sampling import SamplingParams
from rank_services import ASSETS, build

TRAINED = 2048


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tensor_parallel_size": 2},
        {"speculation": {"model": "kvarn-demo-draft", "adaptive": False, "draft_cache_gib": 0.01}},
    ],
    ids=["alone", "ranks", "draft"],
)
def test_a_context_is_lowered_to_what_fits_and_used_to_its_end(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """10 MiB of memory, of which the weights take some 6; one trained context takes 4."""
    if "tensor_parallel_size" in settings:
        pytest.importorskip("kvarn.kernels.cpu._native", reason="needs compiled kernels")
    monkeypatch.setattr("kvarn.replica.server.startup.memory.usable_memory", lambda: 10 * 1024**2)
    service = build(
        ASSETS / "kvarn-demo", kv_cache_gib=None, max_context_length=None, dtype="bfloat16", engine={}, **settings
    )
    length = service.card.max_context_length
    assert length % BLOCK_SIZE == 0
    assert 256 < length < TRAINED
    assert caplog.text.count(f"max_context_length is {length} in place of {TRAINED}") == 1
    sampling = SamplingParams(seed=0, temperature=0.0, max_tokens=100)

    def submit(prompt_length: int) -> Submit:
        prompt = [100 + i % 30 for i in range(prompt_length)]
        return Submit(request_id=f"r{prompt_length}", prompt_token_ids=prompt, sampling=sampling)

    refused = service.accept(submit(length + 1))
    assert refused is not None
    assert f"maximum context length is {length} tokens" in str(refused)
    assert service.accept(submit(length - 9)) is None
    tokens = 0
    while service.has_work():
        for output in service.step():
            assert isinstance(output, StepOutput)
            tokens += sum(len(delta.token_ids) for delta in output.deltas)
    service.shutdown()
    assert 0 < tokens <= 9


@pytest.mark.parametrize("vocab_size", [1, 2, 15, 16, 4096])
def test_a_small_vocabulary_is_warmed_up(vocab_size: int) -> None:
    plans: list[Any] = []
    executor: Any = SimpleNamespace(max_context_length=64, num_blocks=4, submit=plans.append, collect=lambda: plans[-1])
    warm_up(executor, vocab_size)
    (first, *_) = plans
    assert len(plans) == 3 and len(first.rows[0].token_ids) == 16
    assert all(token < vocab_size for plan in plans for row in plan.rows for token in row.token_ids)


def test_a_draft_model_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    check_vocabulary(ASSETS / "kvarn-demo-draft", ASSETS / "kvarn-demo")
    other = tmp_path / "other"
    shutil.copytree(ASSETS / "kvarn-demo-draft", other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(DraftModelError, match=r"2 of 4096 tokens differ.*same family"):
        check_vocabulary(other, ASSETS / "kvarn-demo")
    (other / "tokenizer.json").unlink()
    with pytest.raises(DraftModelError, match=r"need a tokenizer\.json"):
        check_vocabulary(other, ASSETS / "kvarn-demo")
