"""LoRA adapters with random weights, as PEFT writes them, and the merged model as oracle."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj"]
PROJECTIONS += ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "in_proj_qkvz", "out_proj"]
"""Of DeepSeek's attention all but `kv_b_proj`, which is no product of its own."""


def linear_targets(oracle: Any) -> list[str]:
    """Every linear layer of attention and of MLPs that are not experts."""
    return [
        name
        for name, module in oracle.named_modules()
        if isinstance(module, torch.nn.Linear) and name.rpartition(".")[2] in PROJECTIONS and ".experts." not in name
    ]


def make_adapter(oracle: Any, path: Path, *, seed: int = 0, size: float = 0.15, **config: Any) -> Any:
    """Save a random adapter of a transformers model under `path`; returns the model it is merged into."""
    torch.manual_seed(seed)
    targets = linear_targets(oracle)
    if oracle.config.model_type in ("deepseek_v2", "deepseek_v3", "glm4_moe", "qwen3_next"):
        # PEFT takes a dense MLP beside experts for theirs.
        targets = [name for name in targets if ".mlp." not in name]
    settings = {"r": 4, "lora_alpha": 8, "target_modules": targets, **config}
    import peft  # takes seconds

    wrapped = peft.get_peft_model(copy.deepcopy(oracle), peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * size)
    wrapped.save_pretrained(path)
    return wrapped.merge_and_unload()


def change_tensors(path: Path, change: Any) -> None:
    """Rewrite an adapter's tensors."""
    file = path / "adapter_model.safetensors"
    tensors = load_file(file)
    save_file(change(tensors) or tensors, file)
