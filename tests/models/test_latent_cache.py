"""Blocks of latent rows are copied, stored and loaded as blocks of keys and values are: by their bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kv_connectors import DictConnector
from kvarn.engine.plan import BlockCopy, BlockTransfer
from kvarn.models import Decoder, UnsupportedModelError, load_model
from kvarn.worker.kv_blocks import BlockTransfers, block_bytes, copy_blocks

Factory = Callable[..., tuple[Any, Path]]
PROMPT = list(range(5, 37))
NEXT = [7, 9, 11]


@pytest.mark.parametrize("kernels", ["torch", "auto"])
def test_blocks_go_to_another_cache_and_to_other_places(kernels: str, oracle_factory: Factory, run_paged: Any) -> None:
    _, path = oracle_factory("deepseek-v3")
    model = load_model(path, dtype="bfloat16", kernels=kernels)
    assert isinstance(model, Decoder)
    runner = run_paged(model)
    runner.step({"a": PROMPT})
    assert block_bytes(runner.cache) == 16 * model.spec.kv_bytes_per_token("bfloat16") == 16 * 3 * (24 + 8) * 2
    other, connector = run_paged(model), DictConnector()
    names = [b"first", b"second"]
    held = [BlockTransfer(block, name) for block, name in zip(runner.tables["a"], names, strict=True)]
    BlockTransfers(runner.cache, connector).store(held)
    BlockTransfers(other.cache, connector).load([BlockTransfer(40 + n, name) for n, name in enumerate(names)])
    copy_blocks(other.cache, [BlockCopy(40, 50), BlockCopy(41, 51)])
    other.tables["a"], other.lengths["a"] = [50, 51], len(PROMPT)
    for name in runner.tables["a"] + [40, 41, 50, 51]:
        if name in other._free:
            other._free.remove(name)
    assert torch.equal(other.step({"a": NEXT})["a"], runner.step({"a": NEXT})["a"])


def test_an_int8_cache_is_refused(oracle_factory: Factory) -> None:
    _, path = oracle_factory("deepseek-v3")
    with pytest.raises(UnsupportedModelError, match="kv_cache_dtype"):
        load_model(path, kv_cache_dtype="int8")
