"""Small checkpoints in each quantized format, with the models that hold the numbers they stand for.

The writers are made from the descriptions of the formats, bit by bit, independently of the readers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from oracles import change_config

GROUP = 32
AWQ_NIBBLES = (0, 2, 4, 6, 1, 3, 5, 7)
INT8_DYNAMIC = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token", "symmetric": True}


@dataclass
class Quantized:
    """One layer: (codes - zeros) * scales, where the input's group says."""

    codes: np.ndarray  # [out, in], 0 to 2^bits - 1
    zeros: np.ndarray  # [out, groups]
    scales: torch.Tensor  # [out, groups]
    group_of: np.ndarray  # [in]
    bits: int

    @property
    def numbers(self) -> torch.Tensor:
        steps = torch.from_numpy(self.codes - self.zeros[:, self.group_of]).float()
        return steps * self.scales.float()[:, self.group_of]


def words(numbers: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Rows of numbers packed into int32 words, the first in the lowest bits, the last word padded with zeros."""
    per_word = 32 // bits
    padded = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % per_word))).astype(np.uint64)
    out = np.zeros((padded.shape[0], padded.shape[1] // per_word), dtype=np.uint64)
    for place in range(per_word):
        source = place if order is None else order[place]
        out |= padded[:, source::per_word] << np.uint64(bits * place)
    return torch.from_numpy(out.astype(np.uint32).view(np.int32).copy())


def random_layer(
    weight: torch.Tensor, bits: int, seed: int, *, group: int = GROUP, symmetric: bool = False, shuffled: bool = False
) -> Quantized:
    """Codes near a weight's own numbers, with odd zero points."""
    rng = np.random.default_rng(seed)
    out_features, in_features = weight.shape
    group_of = np.arange(in_features) // group
    groups = int(group_of[-1]) + 1
    if shuffled:
        group_of = rng.permutation(group_of)
    top, middle = 2**bits - 1, 2 ** (bits - 1)
    scales = (torch.from_numpy(rng.uniform(0.5, 1.0, (out_features, groups))) * 5.0 * weight.std() / middle).half()
    low, high = middle - middle // 4, middle + middle // 4
    zeros = rng.integers(low, high, (out_features, groups))
    zeros = np.full_like(zeros, middle) if symmetric else zeros
    steps = (weight.float() / scales.float()[:, group_of]).round().numpy().astype(np.int64)
    lowest = 1 if bits == 8 else 0  # -127 at least; -128 has a test of its own
    return Quantized(np.clip(steps + zeros[:, group_of], lowest, top), zeros, scales, group_of, bits)


def gptq(layer: Quantized, *, less_one: bool = True, g_idx: bool = True) -> dict[str, torch.Tensor]:
    qzeros = words(layer.zeros.T, layer.bits)
    if less_one:  # from whole words, as GPTQModel does
        qzeros -= {4: 0x11111111, 8: 0x01010101}[layer.bits]
    tensors = {
        "qweight": words(layer.codes, layer.bits).t().contiguous(),
        "qzeros": qzeros,
        "scales": layer.scales.t().contiguous(),
    }
    return tensors | ({"g_idx": torch.from_numpy(layer.group_of).int()} if g_idx else {})


def awq(layer: Quantized) -> dict[str, torch.Tensor]:
    return {
        "qweight": words(layer.codes.T, 4, AWQ_NIBBLES),
        "qzeros": words(layer.zeros.T, 4, AWQ_NIBBLES),
        "scales": layer.scales.t().contiguous(),
    }


def packed(layer: Quantized, *, symmetric: bool) -> dict[str, torch.Tensor]:
    tensors = {
        "weight_packed": words(layer.codes, layer.bits),
        "weight_shape": torch.tensor(layer.codes.shape),
        "weight_scale": layer.scales.bfloat16() if layer.bits == 8 else layer.scales,
    }
    layer.scales = tensors["weight_scale"]
    if not symmetric:
        tensors["weight_zero_point"] = words(layer.zeros.T, layer.bits).t().contiguous()
    if (np.diff(layer.group_of) < 0).any():
        tensors["weight_g_idx"] = torch.from_numpy(layer.group_of).int()
    return tensors


def unpacked(layer: Quantized) -> dict[str, torch.Tensor]:
    values = torch.from_numpy(layer.codes - 2 ** (layer.bits - 1)).to(torch.int8)
    return {"weight": values, "weight_scale": layer.scales}


def compressed(form: str, weights: dict[str, Any], activations: Any = None, **more: Any) -> dict[str, Any]:
    defaults = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
    scheme = {"targets": ["Linear"], "weights": {**defaults, **weights}, "input_activations": activations}
    config = {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"]}
    return {**config, "config_groups": {"group_0": scheme}, "sparsity_config": {}, **more}


@dataclass(frozen=True)
class Case:
    config: dict[str, Any]
    make: dict[str, Any]
    write: Callable[[Quantized], dict[str, torch.Tensor]]
    held: str


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}
CASES = {
    "gptq": Case(GPTQ, {"bits": 4}, gptq, "int4"),
    "gptq-sym": Case({**GPTQ, "sym": True}, {"bits": 4, "symmetric": True}, lambda q: gptq(q, g_idx=False), "int4"),
    "gptq-v2": Case({**GPTQ, "checkpoint_format": "gptq_v2"}, {"bits": 4}, lambda q: gptq(q, less_one=False), "int4"),
    "gptq-desc-act": Case({**GPTQ, "desc_act": True}, {"bits": 4, "shuffled": True}, gptq, "int4"),
    "gptq-whole-rows": Case({**GPTQ, "group_size": -1}, {"bits": 4, "group": 1024}, gptq, "int4"),
    "gptq-groups-of-16": Case({**GPTQ, "group_size": 16}, {"bits": 4, "group": 16}, gptq, "float"),
    "gptq-8-bits-grouped": Case({**GPTQ, "bits": 8}, {"bits": 8}, gptq, "float"),
    "gptq-8-bits-whole-rows": Case(
        {**GPTQ, "bits": 8, "group_size": -1}, {"bits": 8, "group": 1024, "symmetric": True}, gptq, "int8"
    ),
    "awq": Case(
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
        {"bits": 4},
        awq,
        "int4",
    ),
    "pack-quantized": Case(
        compressed("pack-quantized", {}),
        {"bits": 4, "symmetric": True},
        lambda q: packed(q, symmetric=True),
        "int4",
    ),
    "pack-quantized-asymmetric": Case(
        compressed("pack-quantized", {"symmetric": False}),
        {"bits": 4},
        lambda q: packed(q, symmetric=False),
        "int4",
    ),
    "pack-quantized-actorder": Case(
        compressed("pack-quantized", {"actorder": "group"}),
        {"bits": 4, "symmetric": True, "shuffled": True},
        lambda q: packed(q, symmetric=True),
        "int4",
    ),
    "pack-quantized-w8a16-channel": Case(
        compressed("pack-quantized", {"num_bits": 8, "strategy": "channel", "group_size": None}),
        {"bits": 8, "symmetric": True, "group": 1024},
        lambda q: packed(q, symmetric=True),
        "int8",
    ),
    "pack-quantized-w8a16-groups": Case(
        compressed("pack-quantized", {"num_bits": 8}),
        {"bits": 8, "symmetric": True},
        lambda q: packed(q, symmetric=True),
        "float",
    ),
    "int-quantized-w8a8": Case(
        compressed("int-quantized", {"num_bits": 8, "strategy": "channel", "group_size": None}, INT8_DYNAMIC),
        {"bits": 8, "symmetric": True, "group": 1024},
        unpacked,
        "int8",
    ),
    "int-quantized-w4a8": Case(
        compressed("int-quantized", {"num_bits": 4}, INT8_DYNAMIC), {"bits": 4, "symmetric": True}, unpacked, "int4"
    ),
}


def write_quantized(case: Case, path: Path, skip: tuple[str, ...] = ()) -> tuple[Any, dict[str, Quantized]]:
    """A small model whose projections are quantized (but for those whose name holds one of `skip`): its oracle, and its
    layers."""
    torch.manual_seed(11)
    config = transformers.Qwen3Config(
        vocab_size=104, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=256, tie_word_embeddings=False,
    )  # fmt: skip
    oracle = transformers.Qwen3ForCausalLM(config).eval()
    oracle.save_pretrained(path)
    tensors = {name: tensor.detach().clone() for name, tensor in oracle.state_dict().items()}
    layers: dict[str, Quantized] = {}
    for name, module in oracle.named_modules():
        if not isinstance(module, torch.nn.Linear) or name == "lm_head" or any(part in name for part in skip):
            continue
        # One order for all that multiply the same input, as the tools write it.
        seed = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}.get(name.split(".")[-1], name)
        layer = random_layer(module.weight.detach(), seed=sum(map(ord, seed.split(".")[-1])), **case.make)
        del tensors[f"{name}.weight"]
        tensors |= {f"{name}.{part}": tensor for part, tensor in case.write(layer).items()}
        layers[name] = layer
        module.weight.data = layer.numbers
    save_file(tensors, path / "model.safetensors")
    change_config(path, quantization_config=case.config)
    return oracle, layers


FP8_BLOCK = (16, 12)


def write_fp8(path: Path, oracle: Any) -> None:
    """Store the linear layers' weights in fp8, and give the oracle the numbers that are left of them."""
    tensors = load_file(path / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    for name, weight in list(tensors.items()):
        if not name.endswith("_proj.weight"):
            continue
        rows, columns = (-(-size // side) for size, side in zip(weight.shape, FP8_BLOCK, strict=True))
        scales = torch.rand(rows, columns, generator=generator) * 0.01 + 0.001
        wide = scales.repeat_interleave(FP8_BLOCK[0], 0).repeat_interleave(FP8_BLOCK[1], 1)[
            : weight.shape[0], : weight.shape[1]
        ]
        stored = (weight / wide).clamp(-448, 448).to(torch.float8_e4m3fn)
        tensors |= {name: stored, f"{name}_scale_inv": scales, f"widened/{name}": stored.float() * wide}
    widened = {name.removeprefix("widened/"): tensors.pop(name) for name in list(tensors) if name.startswith("widened")}
    save_file({**tensors, **widened}, path / "model.safetensors", metadata={"format": "pt"})
    oracle.load_state_dict(type(oracle).from_pretrained(path).state_dict())
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    change_config(path, quantization_config={"quant_method": "fp8", "weight_block_size": list(FP8_BLOCK)})


def write_mxfp4(
    path: Path, oracle: Any, widen: Callable[[str, torch.Tensor, torch.Tensor], None] | None = None
) -> None:
    """Store random blocks and scales in place of the experts of gpt-oss. `widen` is told each parameter's."""
    tensors = load_file(path / "model.safetensors")
    generator = torch.Generator().manual_seed(4)
    for index, layer in enumerate(oracle.model.layers):
        for name in ("gate_up_proj", "down_proj"):
            experts, inputs, outputs = getattr(layer.mlp.experts, name).shape
            size = (experts, outputs, inputs // 32, 16)
            blocks = torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)
            scales = torch.randint(121, 126, size[:-1], generator=generator, dtype=torch.uint8)
            key = f"model.layers.{index}.mlp.experts.{name}"
            if widen is not None:
                widen(key, blocks, scales)
            del tensors[key]
            tensors |= {f"{key}_blocks": blocks, f"{key}_scales": scales}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    method = {"quant_method": "mxfp4", "modules_to_not_convert": ["self_attn", "router"]}
    change_config(path, quantization_config=method)
