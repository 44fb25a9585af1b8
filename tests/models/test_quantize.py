"""Plain weights quantized at load: how much is lost, what is quantized, and that the model still says the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvarn.kernels.torch.linear import TorchLinear
from kvarn.kernels.torch.quantize import quantize_int8
from kvarn.models import Decoder, load_model
from kvarn.models.layer import DecoderLayer
from kvarn.models.mlp.moe import MoeMlp
from tiny_checkpoints import make_encoder

Factory = Callable[..., tuple[Any, Path]]
PROMPT = list(range(5, 60))


@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3", "gemma3", "command-r-plus", "qwen3-next"])
@pytest.mark.parametrize(("quantization", "close"), [("int8", 0.998), ("int4", 0.93)])
def test_a_quantized_model_stays_close_to_the_plain_one(
    family: str, quantization: str, close: float, oracle_factory: Factory, run_paged: Any
) -> None:
    oracle, path = oracle_factory(family)
    if any("experts" in name for name, _ in oracle.named_parameters()):
        pytest.skip("random routers flip; see the test of routers")
    plain, quantized = (
        run_paged(load_model(path, dtype="float32", kernels="torch", **options)).step({"a": PROMPT})["a"]
        for options in ({}, {"quantization": quantization, "kv_cache_dtype": "float32"})
    )
    assert not torch.equal(plain, quantized)
    assert torch.nn.functional.cosine_similarity(plain, quantized, dim=-1).mean() > close


def test_routers_norms_and_embeddings_stay_plain_and_the_head_is_int8(oracle_factory: Factory) -> None:
    _, path = oracle_factory("qwen2-moe")
    model = load_model(path, dtype="float32", kernels="torch", quantization="int4")
    assert isinstance(model, Decoder)
    layer = model._stack.layers[0]
    assert isinstance(layer, DecoderLayer) and isinstance(layer.mlp, MoeMlp)
    blocks = {
        name: linear.quantize_block
        for name, linear in {
            "router": layer.mlp.router,
            "shared_gate": layer.mlp.shared_gate,
            "qkv": layer.attention.products[0],
            "expert": layer.mlp.experts.held[0].down,
            "head": model._head,
        }.items()
        if isinstance(linear, TorchLinear)
    }
    assert blocks == {"router": None, "shared_gate": None, "qkv": 128, "expert": 128, "head": 0}
    assert model._embedding is not None
    assert model._embedding.dtype == torch.float32
    assert model.quantization == "int4"


def test_a_tied_embedding_reads_the_rows_of_the_quantized_head(oracle_factory: Factory) -> None:
    oracle, path = oracle_factory("qwen3")
    model = load_model(path, dtype="float32", kernels="torch", quantization="int4")
    assert isinstance(model, Decoder)
    want = quantize_int8(oracle.get_input_embeddings().weight.detach()).dequantized()
    assert torch.equal(model._look_up(torch.tensor([3, 198])), want[[3, 198]])


def test_the_progress_names_what_happens_and_ends_at_one(oracle_factory: Factory) -> None:
    _, path = oracle_factory("qwen3")
    seen: list[tuple[str, float]] = []
    load_model(path, quantization="int8", kernels="torch", progress=lambda stage, done: seen.append((stage, done)))
    assert {stage for stage, _ in seen} == {"quantize to int8"}
    fractions = [fraction for _, fraction in seen]
    assert fractions == sorted(fractions) and len(fractions) > 10 and fractions[-1] == 1.0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dtype": "float32"}, "float32"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float32", "quantization": "int8"}, "bfloat16"),
        ({"dtype": "bfloat16", "kv_cache_dtype": "float32"}, "float32"),
    ],
)
def test_the_cache_is_of_the_weights_type_unless_asked_otherwise(
    options: dict[str, str], expected: str, oracle_factory: Factory
) -> None:
    _, path = oracle_factory("qwen3")
    model = load_model(path, kernels="torch", **options)
    assert isinstance(model, Decoder)
    assert str(model.new_kv_cache(2).keys[0].dtype) == f"torch.{expected}"


def test_an_encoder_is_quantized_too(tmp_path: Path) -> None:
    make_encoder("Bert", tmp_path)
    plain, quantized = (load_model(tmp_path, dtype="float32", kernels="torch", quantization=q) for q in (None, "int8"))
    ids, starts = torch.arange(5, 45), torch.tensor([0, 15, 40])
    one, other = plain.encode(ids, starts), quantized.encode(ids, starts)
    assert not torch.equal(one, other)
    assert torch.nn.functional.cosine_similarity(one, other, dim=-1).min() > 0.999
