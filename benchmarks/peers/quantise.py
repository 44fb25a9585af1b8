"""The copy of a checkpoint that vLLM calls W8A8: int8 weights, one scale for each output channel, in the format of
compressed-tensors; activations are quantised as they come, one scale for each token. Embeddings stay as they are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

SCHEME: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"type": "int", "num_bits": 8, "strategy": "channel", "symmetric": True, "dynamic": False},
            "input_activations": {
                "type": "int",
                "num_bits": 8,
                "strategy": "token",
                "symmetric": True,
                "dynamic": True,
            },
        }
    },
}
LARGEST = 127
"""Both ends of the range are used, -128 is not: symmetric."""


def write_w8a8(source: Path, target: Path) -> None:
    """Write the copy; its `config.json` comes last and says that the rest is whole."""
    import torch
    from safetensors.torch import load_file, save_file

    target.mkdir(parents=True, exist_ok=True)
    made: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            wide = tensor.float()
            scale = wide.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / LARGEST
            made[name] = (wide / scale).round().clamp(-LARGEST, LARGEST).to(torch.int8)
            made[f"{name}_scale"] = scale
        else:
            made[name] = tensor
    save_file(made, target / "model.safetensors", metadata={"format": "pt"})
    for path in source.iterdir():
        if path.name not in ("model.safetensors", "config.json"):
            shutil.copy(path, target)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    (target / "config.json").write_text(
        json.dumps(config | {"quantization_config": SCHEME}, indent=1), encoding="utf-8"
    )
