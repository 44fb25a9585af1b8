"""The device of a model: its backend is chosen by it, and weights and KV cache are made there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvarn.kernels import dispatch
from kvarn.kernels.backend import Kernels, torch_kernels
from kvarn.kernels.batch import HeadShape, KVCache
from kvarn.kernels.device.offload import tensors_of
from kvarn.kernels.dispatch import BACKENDS, Backend
from kvarn.kernels.operations import Operations
from kvarn.models import Decoder, load_model
from kvarn.shapes import KvDtype

Factory = Callable[..., tuple[Any, Path]]
PROMPT = list(range(5, 40))


class RecordingOperations(Operations):
    """Stands for the operations of another device: computes on this one, and counts the caches it makes."""

    caches = 0

    def __init__(self, requested: torch.device) -> None:
        super().__init__(torch.device("cpu"))
        self.requested = requested

    def new_kv_cache(self, num_layers: int, num_blocks: int, heads: HeadShape, dtype: KvDtype) -> KVCache:
        self.caches += 1
        return super().new_kv_cache(num_layers, num_blocks, heads, dtype)


@pytest.mark.parametrize("family", ["qwen3", "qwen2-moe", "olmo2"])
def test_weights_and_cache_are_made_on_the_device(family: str, oracle_factory: Factory) -> None:
    _, path = oracle_factory(family)
    model = load_model(path, device="meta", dtype="float32")
    assert isinstance(model, Decoder)
    cache = model.new_kv_cache(4)
    held = [*cache.keys, *cache.values, *tensors_of(model)]
    assert len(held) > 20
    assert {tensor.device for tensor in held} == {torch.device("meta")}


def test_the_registered_backend_of_a_device_serves_the_model_and_makes_its_cache(
    oracle_factory: Factory, run_paged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recording(device: torch.device) -> Kernels:
        return replace(torch_kernels(), name="recording", operations=RecordingOperations(device))

    _, path = oracle_factory("qwen3")
    monkeypatch.setattr(dispatch, "BACKENDS", {"recording": Backend(recording, ("xpu",)), **BACKENDS})
    model = load_model(path, device="xpu:1", dtype="float32")
    assert isinstance(model, Decoder)
    operations = model.kernels.operations
    assert isinstance(operations, RecordingOperations)
    assert operations.requested == torch.device("xpu:1")
    logits = run_paged(model).step({"a": PROMPT})["a"]
    assert operations.caches == 1
    assert torch.equal(logits, run_paged(load_model(path, dtype="float32", kernels="torch")).step({"a": PROMPT})["a"])
