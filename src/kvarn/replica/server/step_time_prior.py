"""Expected step times before the first step: the roofline of this model on this machine.

The floor of a step (`kvarn.costs`) over the speed of the model's own products, divided by a stated efficiency. The
products are timed on the weights themselves, which the warm-up has just read whole: nothing is allocated, weights that
fit into the caches are timed there, where they will be read, and others outside of them. On a GPU they are captured and
timed by its own clock: it computes a product of few rows in less time than the host needs to start one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch

from kvarn.clock import SYSTEM_CLOCK
from kvarn.costs.decoder import DecoderCosts
from kvarn.costs.roofline import Ceilings, floor_s
from kvarn.costs.step_times import ExpectedStep, StepShape, typical_steps
from kvarn.kernels.device.graphs import GraphRecorder, device_seconds
from kvarn.kernels.device.memory import is_host
from kvarn.kernels.linear import Linear

log = logging.getLogger(__name__)

EFFICIENCY = 0.8
"""Part of the speed of its products that a step is expected to reach: attention, norms, sampling and Python take time
too, and a step that both reads and computes much overlaps the two badly."""

_FEW, _MANY = 1, 64  # rows of products that are bound by reading, and by computing
_LARGEST_PRODUCT = 512 * 1024**2
"""Operations: a product with many rows of a large weight gets fewer rows."""
_MANY_ON_GPU = 2048  # rows that fill a GPU
_REPEATS = 5
_BUDGET_S = 0.025
"""For each of the two speeds. One product is always timed."""


@torch.inference_mode()
def product_speeds(
    products: Sequence[Linear],
    dtype: torch.dtype,
    device: torch.device | None = None,
    recorder: GraphRecorder | None = None,
) -> Ceilings:
    """Speeds at which some products read weights and compute: the best within some hundredths of a second.

    Args:
        products: Products with different weights and the same number of inputs; each is multiplied once with few rows.
        dtype: Type of their inputs.
        device: Device that computes them.
        recorder: Captures them, on a GPU whose kernels can be captured.
    """
    in_features = products[0].in_features
    if recorder is not None:
        few, many = (torch.ones(rows, in_features, dtype=dtype, device=device) for rows in (_FEW, _MANY_ON_GPU))
        operations = 2.0 * len(many) * in_features * sum(product.out_features for product in products)
        return Ceilings(
            bytes_per_s=sum(product.nbytes for product in products) / _captured_s(products, few, recorder),
            operations_per_s=operations / _captured_s(products, many, recorder),
        )
    few = torch.ones(_FEW, in_features, dtype=dtype, device=device)
    weights = 2 * max(product.out_features * in_features for product in products)
    many = torch.ones(max(8, min(_MANY, _LARGEST_PRODUCT // weights)), in_features, dtype=dtype, device=device)
    operations = 2.0 * len(many) * in_features
    return Ceilings(
        bytes_per_s=_best_rate([(product, float(product.nbytes)) for product in products], few),
        operations_per_s=_best_rate([(product, operations * product.out_features) for product in products], many),
    )


def expected_steps(costs: DecoderCosts, speeds: Ceilings) -> list[ExpectedStep]:
    """Some different steps, and the seconds each is expected to take."""
    return [(shape, step_floor_s(shape, costs, speeds) / EFFICIENCY) for shape in typical_steps()]


def step_floor_s(shape: StepShape, costs: DecoderCosts, speeds: Ceilings) -> float:
    """The least seconds of a step of this shape."""
    work = costs.step(
        tokens=shape.num_tokens,
        logits_rows=shape.decode_rows + shape.proposals + (shape.prefill_tokens > 0),
        kv_tokens=shape.decode_context,
        pairs=shape.decode_context + shape.prefill_pairs,
    )
    return floor_s(work, speeds)


def _finish(result: torch.Tensor) -> None:
    if not is_host(result.device):
        torch.accelerator.synchronize(result.device)


def _captured_s(products: Sequence[Linear], x: torch.Tensor, recorder: GraphRecorder) -> float:

    def run() -> tuple[torch.Tensor, ...]:
        for product in products:
            product(x)
        return ()

    run()  # kernels are compiled when they are first called
    work: Callable[[], object] = run
    try:
        work, _ = recorder(run)
    except RuntimeError:
        log.exception("products cannot be captured: they are timed with the host's part")
    return min(device_seconds(work) for _ in range(_REPEATS))


def _best_rate(products: Sequence[tuple[Linear, float]], x: torch.Tensor) -> float:
    if not is_host(x.device):
        _finish(products[0][0](x))  # kernels are compiled when they are first called
    best, ends = 0.0, SYSTEM_CLOCK.now() + _BUDGET_S
    for product, amount in products:
        began = SYSTEM_CLOCK.now()
        _finish(product(x))
        now = SYSTEM_CLOCK.now()
        best = max(best, amount / (now - began))
        if now > ends:
            break
    return best
