"""Muon in fp32, and AdamW for what is not a matrix.

torch.optim.Muon orthogonalises in bf16, which a CPU without bf16 units does slowly; this one stays in fp32.
Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def orthogonalise(matrix: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Bring all singular values near one by a quintic Newton-Schulz iteration. [rows, columns] in and out."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised; for the weight matrices inside the layers."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.1
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Apply one update."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(parameter)
                average = state["momentum"]
                average.lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonalise(parameter.grad.lerp(average, group["momentum"]))
                scale = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"] * scale)


def make_optimizers(model: nn.Module, matrix_lr: float, other_lr: float) -> list[torch.optim.Optimizer]:
    """Muon for layer matrices, in two halves that can run side by side; AdamW for the rest.

    Queries and keys belong to the rest: a Llama does not normalise them, and Muon, which lets every singular value
    grow alike, soon makes attention so sharp that it stops learning where to look. The embedding starts large (see
    `shapes.py`) and so takes larger steps; the last norm starts small and takes smaller ones.
    """
    muon: list[nn.Parameter] = []
    adamw: dict[float, list[nn.Parameter]] = {0.1: [], 1.0: [], 5.0: []}
    for name, parameter in model.named_parameters():
        if name == "model.embed_tokens.weight":
            adamw[5.0].append(parameter)
        elif name == "model.norm.weight":
            adamw[0.1].append(parameter)
        elif parameter.ndim == 1 or name.endswith(("q_proj.weight", "k_proj.weight")):
            adamw[1.0].append(parameter)
        else:
            muon.append(parameter)
    groups = [{"params": parameters, "lr": other_lr * factor} for factor, parameters in adamw.items()]
    return [
        Muon(muon[::2], lr=matrix_lr),
        Muon(muon[1::2], lr=matrix_lr),
        torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.0, eps=1e-8),
    ]


def schedule(step: int, steps: int, warmup: int, decay: int) -> float:
    """Warm up, stay, and decay linearly: the share of the learning rate at a step."""
    if step < warmup:
        return (step + 1) / warmup
    return min(1.0, (steps - step) / decay)
