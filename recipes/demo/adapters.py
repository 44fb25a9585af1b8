"""Train a LoRA adapter over a finished kvarn-demo and write it in PEFT's format.

python -m recipes.demo.adapters --name pirate --base src/kvarn/assets/kvarn-demo --out src/kvarn/assets/adapters
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

import torch
from recipes.demo.muon import schedule
from recipes.demo.packing import groups
from recipes.demo.parallel import GroupParallel
from recipes.demo.styles import STYLES, style_documents
from recipes.demo.tokens import write_json
from recipes.demo.train import GROUP_TOKENS, group_loss
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn
from transformers import LlamaForCausalLM

RANK = 8
ALPHA = 16
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LoraLinear(nn.Module):
    """A frozen linear layer with a trained low-rank path beside it: `W x + (alpha / rank) B A x`."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.lora_A = nn.Linear(base.in_features, RANK, bias=False)
        self.lora_B = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] to [..., out]."""
        return self.base(x) + (ALPHA / RANK) * self.lora_B(self.lora_A(x))


def add_lora(model: LlamaForCausalLM) -> list[nn.Parameter]:
    """Freeze the model, put an adapter beside every target, and return what is trained."""
    model.requires_grad_(False)
    trained: list[nn.Parameter] = []
    for layer in model.model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name in TARGETS:
                if hasattr(block, name):
                    lora = LoraLinear(getattr(block, name))
                    setattr(block, name, lora)
                    trained += [lora.lora_A.weight, lora.lora_B.weight]
    return trained


def save_adapter(model: LlamaForCausalLM, folder: Path) -> None:
    """Write adapter_config.json and adapter_model.safetensors as PEFT reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"base_model.model.{name}": value.detach().to(torch.bfloat16).contiguous()
        for name, value in model.state_dict().items()
        if ".lora_" in name
    }
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    write_json(
        folder / "adapter_config.json",
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": "kvarn-demo",
            "r": RANK,
            "lora_alpha": ALPHA,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": list(TARGETS),
            "fan_in_fan_out": False,
            "use_rslora": False,
            "use_dora": False,
            "inference_mode": True,
            "modules_to_save": None,
            "init_lora_weights": True,
        },
    )


def main() -> None:
    """Parse the command line and train one adapter."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--name", choices=tuple(STYLES), required=True)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--groups", type=int, default=6)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    tokenizer = Tokenizer.from_file(str(options.base / "tokenizer.json"))
    model = LlamaForCausalLM.from_pretrained(options.base, dtype=torch.bfloat16).float()
    optimizer = torch.optim.AdamW(add_lora(model), lr=options.lr, betas=(0.9, 0.98), weight_decay=0.0)
    workers = GroupParallel(model, options.threads)
    stream = groups(tokenizer, style_documents(options.name, options.seed), GROUP_TOKENS, options.seed)
    began, average = time.monotonic(), 0.0
    for step in range(options.steps):
        batch = [next(stream) for _ in range(options.groups)]
        learnt = sum(group.learnt for group in batch)
        loss = workers.backward([partial(group_loss, group=group, learnt_in_step=learnt) for group in batch])
        optimizer.param_groups[0]["lr"] = options.lr * schedule(step, options.steps, 10, options.steps // 2)
        workers.step([optimizer])
        average = loss if average == 0.0 else 0.9 * average + 0.1 * loss
        if (step + 1) % 20 == 0:
            print(f"step {step + 1} loss {average:.4f} seconds {time.monotonic() - began:.0f}", flush=True)
    save_adapter(model, options.out / options.name)


if __name__ == "__main__":
    main()
