"""An engine that sleeps: its KV cache is gone, its weights wait in main memory, and it answers as before once awake."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.multiprocessing.reductions import StorageWeakRef

from kvarn.config.model import ModelConfig
from kvarn.kernels.device.offload import tensors_of
from kvarn.replica.server.build import build_service
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.spec import ReplicaSpec
from kvarn.wire.messages import StepOutput, Submit
from kvarn.wire.sampling import SamplingParams
from profiles import thorough
from tiny_checkpoints import make_decoder


def answers(service: GenerateService) -> dict[str, list[int]]:
    """To a greedy request and a sampled one, which begin alike."""
    for name, temperature in (("greedy", 0.0), ("sampled", 0.9)):
        sampling = SamplingParams(seed=1, temperature=temperature, max_tokens=3)
        assert service.accept(Submit(request_id=name, prompt_token_ids=[5, 6, 7], sampling=sampling)) is None
    found: dict[str, list[int]] = {"greedy": [], "sampled": []}
    while service.has_work():
        for output in service.step():
            assert isinstance(output, StepOutput), output
            for delta in output.deltas:
                found[delta.request_id] += delta.token_ids
    return found


@pytest.mark.parametrize("family", [thorough("qwen3"), "deepseek-v2"])
def test_a_model_answers_with_the_same_tokens_after_it_slept(tmp_path: Path, family: str) -> None:
    make_decoder(family, tmp_path)
    settings = {"kernels": "triton", "quantization": "fp8", "max_context_length": 64, "kv_cache_gib": 0.001}
    config = ModelConfig(name="m", path=str(tmp_path), engine={"max_num_seqs": 2}, **settings)
    spec = ReplicaSpec(model=config.model_dump_json(), directory=str(tmp_path))
    service = build_service(spec, lambda *_: None)
    assert isinstance(service, GenerateService)
    before = answers(service)
    for _ in range(2):
        sleep = service.sleep
        assert sleep is not None
        model = sleep.args[0]  # type: ignore[attr-defined]
        held = {StorageWeakRef(tensor.untyped_storage()) for tensor in tensors_of(service)}
        of_model = [tensor.untyped_storage() for tensor in tensors_of(model)]
        service.shutdown()
        del service
        sleeping = sleep()
        assert sleeping.nbytes >= model.layer_bytes
        assert all(storage.nbytes() == 0 for storage in of_model if storage.resizable())
        left = {reference for reference in held if not reference.expired()}
        assert left <= {StorageWeakRef(storage) for storage in of_model}, "the cache and the rest are gone"
        service = sleeping.wake(lambda *_: None)
        assert answers(service) == before
    service.shutdown()
