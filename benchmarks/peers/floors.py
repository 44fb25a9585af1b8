"""What the memory and the arithmetic of this machine allow at best, for the ratio to the roofline.

The seam to the machine's measured ceilings: everything the suite knows about floors comes through `ceiling`. A floor is
idealised: prompts that run together read the weights once, decoding reads them once a step, a shared prefix is read
once, reading and computing overlap perfectly, and nothing else takes time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from benchmarks.models import SHAPES, Shape
from benchmarks.peers.engines.base import Precision
from benchmarks.peers.records import Limits, Record
from benchmarks.workloads import WORKLOADS, Workload
from kvarn.costs.decoder import DecoderCosts
from kvarn.costs.roofline import Ceilings, floor_s

BITS: dict[str, tuple[float, float]] = {Precision.BF16: (16, 16), Precision.INT8: (8, 8), Precision.INT4: (4.5, 8)}
"""Bits of one weight of the layers, and of the output head. int4: a float16 scale for each group of 32."""
KV_BYTES = 2
"""Of a cached number: 16 bits in all classes."""


Ceiling = Callable[[str, str, str], float | None]
"""Shape, precision and workload to the most output tokens/s the machine allows; None where nobody knows."""


def known_ceilings(records: Iterable[Record]) -> dict[str, Ceilings]:
    """The machine's ceilings by precision: the highest of all measured, as a ceiling is; empty where none was."""
    limits = [each for each in records if isinstance(each, Limits)]
    read = max((each.bytes_per_s for each in limits), default=0.0)
    precisions = {name for each in limits for name in each.operations_per_s}
    return {name: Ceilings(read, max(each.operations_per_s.get(name, 0.0) for each in limits)) for name in precisions}


def ceiling(limits: Mapping[str, Ceilings]) -> Ceiling:
    """Of a machine whose ceilings are known by precision; W6 is paced by its arrivals and has none."""

    def most(shape: str, precision: str, workload: str) -> float | None:
        if precision not in limits or workload not in WORKLOADS:
            return None
        load = WORKLOADS[workload]
        costs = shape_costs(SHAPES[shape], precision)
        return load.requests * load.output / workload_s(load, costs, limits[precision])

    return most


def shape_costs(shape: Shape, precision: str) -> DecoderCosts:
    """What a made checkpoint costs when it is held in a precision; its head is its embedding."""
    matrices = {name: size for name, size in shape.tensors().items() if len(size) == 2}
    head = float(np.prod(matrices.pop("model.embed_tokens.weight")))
    return DecoderCosts(
        dense_weights=float(sum(np.prod(size) for size in matrices.values())),
        expert_weights=0.0,
        num_experts=0,
        experts_per_token=0,
        head_weights=head,
        bits=BITS[precision][0],
        head_bits=BITS[precision][1],
        kv_bytes_per_token=2.0 * KV_BYTES * shape.layers * shape.kv_heads * shape.head_dim,
        operations_per_pair=4.0 * shape.layers * shape.heads * shape.head_dim,
    )


def workload_s(load: Workload, costs: DecoderCosts, limits: Ceilings) -> float:
    """Seconds a workload takes at least: so many waves of prompts, then a step for each further token."""
    users, own, shared = load.concurrency, load.prompt, load.shared_prefix
    pairs = users * (own * shared + own * (own + 1) / 2)
    prompts = costs.step(tokens=users * own, logits_rows=users, kv_tokens=shared, pairs=pairs)
    middle = shared + own + load.output // 2
    step = costs.decode(users, middle, shared)
    wave = floor_s(prompts, limits) + (load.output - 1) * floor_s(step, limits)
    return load.requests / users * wave
