"""Checkpoints on disk that tests change, and logits against transformers'."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


def change_config(path: Path, **changes: Any) -> dict[str, Any]:
    """Write fields into a checkpoint's config.json; what stands there afterwards."""
    config: dict[str, Any] = {**json.loads((path / "config.json").read_text()), **changes}
    (path / "config.json").write_text(json.dumps(config))
    return config


def change_weights(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Write other tensors into a checkpoint."""
    weights = {name: tensor.clone() for name, tensor in load_file(path / "model.safetensors").items()}
    change(weights)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})


def expected_logits(oracle: Any, ids: list[int]) -> torch.Tensor:
    """[tokens, vocab] float32 of a model of transformers."""
    with torch.no_grad():
        logits: torch.Tensor = oracle(torch.tensor([ids])).logits[0].float()
    return logits


def assert_same_logits(
    run_paged: Any, model: Any, oracle: Any, ids: list[int], atol: float = 1e-4, rtol: float = 1e-4
) -> None:
    """Compare those of a prompt, computed in one step."""
    logits = run_paged(model).step({"a": ids})["a"]
    torch.testing.assert_close(logits, expected_logits(oracle, ids), atol=atol, rtol=rtol)
