"""The real engine, whose memory a test can corrupt: factories of a `ReplicaSpec`.

`KVARN_TEST_FAULTS` is a folder. On SIGUSR1 the engine reads the file there that has its model's name, which says what
to corrupt, corrupts it and deletes the file. `<name>.at-start` corrupts each engine that starts while it is there.
"""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import torch

from kvarn.replica.server.build import build_service
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.spec import ReplicaSpec, ReportProgress


def build(spec: ReplicaSpec, report: ReportProgress) -> Any:
    """The service, with a handler that corrupts it."""
    service = build_service(spec, report)
    assert isinstance(service, GenerateService)
    executor: Any = service.parts.executor
    blocks: dict[str, list[int]] = {}
    begin = executor.adapters.begin

    def remember(load: Any) -> None:
        blocks[load.adapter] = list(load.blocks)
        begin(load)

    executor.adapters.begin = remember
    fault = Path(os.environ["KVARN_TEST_FAULTS"]) / spec.model_config.name

    def corrupt(*_: object) -> None:
        _corrupt(executor, blocks, json.loads(fault.read_text()))
        fault.unlink()

    signal.signal(signal.SIGUSR1, corrupt)
    at_start = fault.with_suffix(".at-start")
    if at_start.exists():
        _corrupt(executor, blocks, json.loads(at_start.read_text()))
    return service


def _corrupt(executor: Any, blocks: dict[str, list[int]], fault: dict[str, Any]) -> None:
    match fault["kind"]:
        case "weight":
            flip_weight_bit(executor.runner.model, random.Random(fault["seed"]), fault.get("bit"))
        case "kv":
            values = executor.runner.cache.values[fault["layer"]]
            values[:] = values.roll(1, 0)  # each block is overwritten by its neighbour
        case "adapter":
            for digest, placed in blocks.items():
                packed = executor.adapters._held[digest]
                packed.lines[: len(packed.lines) // 2, 1] ^= 0x08
                executor.adapters.memory.write(packed, placed)


def flip_weight_bit(model: Any, source: random.Random, bit: int | None = None) -> str:
    """Flip one bit of one layer's weights; `bit` counts within two bytes, None: any. Returns where."""
    number = source.randrange(len(model._stack.layers))
    layer = model._stack.layers[number]
    name, product = source.choice(
        [
            ("qkv", layer.attention.qkv),
            ("output", layer.attention.output),
            ("gate_up", layer.mlp.gate_up),
            ("down", layer.mlp.down),
        ]
    )
    blob: torch.Tensor = product.packed.blob
    byte = source.randrange(blob.numel() // 2) * 2
    which = source.randrange(16) if bit is None else bit
    blob[byte + which // 8] ^= 1 << (which % 8)
    return f"layer {number} {name} byte {byte} bit {which}"
