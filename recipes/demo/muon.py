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
        self, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.02
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
    """Muon for layer matrices, in two halves that can run side by side; AdamW for the embedding and the norms."""
    matrices = [
        p
        for name, p in model.named_parameters()
        if p.ndim == 2 and "embed_tokens" not in name and "lm_head" not in name
    ]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    return [
        Muon(matrices[::2], lr=matrix_lr),
        Muon(matrices[1::2], lr=matrix_lr),
        torch.optim.AdamW(others, lr=other_lr, betas=(0.9, 0.98), weight_decay=0.0, eps=1e-10),
    ]


def schedule(step: int, steps: int, warmup: int, decay: int) -> float:
    """Warm up, stay, and decay linearly: the share of the learning rate at a step."""
    if step < warmup:
        return (step + 1) / warmup
    return min(1.0, (steps - step) / decay)
