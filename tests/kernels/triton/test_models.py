"""A whole model by the Triton kernels: the tokens of the reference, with batches filled up as for captured steps."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from kvarn.config.schema import EngineConfig
from kvarn.engine import EngineCore
from kvarn.models import Decoder, load_model
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker import InProcessExecutor, PipelinedExecutor
from tiny_checkpoints import make_decoder


def tokens(executor: InProcessExecutor) -> dict[str, list[int]]:
    """Three requests, of which one ends early."""
    ticks = count()
    engine = EngineCore(executor, EngineConfig(max_num_seqs=4, tpot_target_ms=1e9), lambda: next(ticks) * 0.01)
    for index, temperature in enumerate((0.0, 0.9, 0.0)):
        sampling = SamplingParams(seed=index, temperature=temperature, max_tokens=(4, 4, 2)[index])
        engine.add(Submit(request_id=str(index), prompt_token_ids=[7, 8 + index, 9][: 1 + index], sampling=sampling))
    found: dict[str, list[int]] = {}
    while engine.has_work():
        for delta in engine.step().deltas:
            found.setdefault(delta.request_id, []).extend(delta.token_ids)
    return found


@pytest.mark.parametrize("family", ["qwen3"])
def test_a_model_answers_as_with_the_reference(tmp_path: Path, family: str) -> None:
    make_decoder(family, tmp_path)
    found = []
    for kernels, executor_type in (("torch", InProcessExecutor), ("triton", PipelinedExecutor)):
        model = load_model(tmp_path, dtype="float32", kernels=kernels)
        assert isinstance(model, Decoder)
        options = {"fill_up": True} if executor_type is PipelinedExecutor else {}
        found.append(tokens(executor_type(model, num_blocks=20, max_num_seqs=4, **options)))
    assert found[0] == found[1]
    assert [len(found[1][each]) for each in "012"] == [4, 4, 2]
