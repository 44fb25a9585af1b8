"""A context that the memory has no room for is shorter where nobody asked for it, in all parts of a replica."""

from __future__ import annotations

from typing import Any

import pytest

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
    monkeypatch.setattr("kvarn.worker.memory.usable_memory", lambda: 10 * 1024**2)
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
