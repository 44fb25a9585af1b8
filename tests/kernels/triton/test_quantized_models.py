"""Weights that are quantized where they are multiplied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kvarn.kernels.dispatch import kernels_for
from kvarn.kernels.weights import Quantization
from kvarn.models import Decoder, load_model
from tiny_checkpoints import make_decoder

pytestmark = pytest.mark.sample


class Memory(TorchDispatchMode):
    """Bytes that tensors made meanwhile hold, now and at most. Mapped files are not counted, nor single tensors of more
    than `largest` bytes: scratch memory of the kernels."""

    def __init__(self, largest: int) -> None:
        super().__init__()
        self._largest = largest
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    @property
    def held(self) -> int:
        return sum(size for reference, size in self._storages.values() if not reference.expired())

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            if storage.resizable() and storage.nbytes() <= self._largest:
                self._storages[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        self.most = max(self.most, self.held)
        return made


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
def test_loading_takes_the_quantized_model_and_one_layer(tmp_path: Path, quantization: Quantization) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 6, "vocab_size": 64}
    make_decoder("llama", tmp_path, **sizes)
    largest = 2 * 512 * 128 * 4
    with Memory(2 * largest) as memory:
        model = load_model(tmp_path, dtype="float32", kernels="triton", quantization=quantization)
    assert isinstance(model, Decoder)
    assert memory.held < 3.5 * largest, "the plain model would take eleven times the largest weight"
    assert memory.held < memory.most <= memory.held + 1.3 * largest


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_weights_have_the_bits_that_the_kernels_of_processors_give_them(
    tmp_path: Path, quantization: Quantization
) -> None:
    make_decoder("qwen3", tmp_path, hidden_size=96, intermediate_size=160)
    model = load_model(tmp_path, dtype="float32", kernels="triton", quantization=quantization)
    assert isinstance(model, Decoder)
    stored, compiled = load_file(tmp_path / "model.safetensors"), kernels_for("auto")
    for spec, layer in model.adapted_layers:
        plain = torch.cat([stored[f"{name}.weight"] for name in spec.names])
        found = layer.rows(torch.arange(len(plain)))
        assert torch.equal(found, compiled.packer.pack_plain([plain], quantization).rows(torch.arange(len(plain))))
