"""Bytes of a loaded model, counted on its tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

_NO_WEIGHTS = ("visits", "parallel", "operations", "spec", "native", "grouped", "_workspace", "_packed", "adapters")
"""Attributes that hold no weights, or those of others."""


def held_bytes(model: Any) -> int:
    """Bytes of all weights of a decoder, each counted once."""
    roots = (model._stack.layers, model._norm, model._head, model._embedding)
    storages = {tensor.data_ptr(): tensor.nbytes for root in roots for tensor in _tensors(root)}
    return sum(storages.values())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)
    elif type(value).__module__.startswith("kvarn."):
        names = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else vars(value)
        for name in names:
            if name not in _NO_WEIGHTS:
                yield from _tensors(getattr(value, name))
