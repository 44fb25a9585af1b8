"""Configurations that are considered for a model on a device."""

from __future__ import annotations

from collections.abc import Iterator

from kvarn.costs.replica_model import ReplicaModel
from kvarn.planner.answer import Layout
from kvarn.planner.devices import Device
from kvarn.planner.memory import decoder_costs
from kvarn.planner.models import PlannedModel
from kvarn.planner.request import Choices, WeightFormat
from kvarn.shapes import KvDtype
from kvarn.specs.place import DEGREES

_SMALL_BITS = 12
"""Weights of fewer bits are not made smaller unless that is asked for."""


def layouts(
    choices: Choices,
    model: PlannedModel,
    key: str,
    device: Device,
    stages: int,
    calibrated: ReplicaModel | None = None,
) -> Iterator[Layout]:
    """Layouts with so many stages, those with the fewest devices first; of a calibrated replica the one it has."""
    if calibrated is not None:
        weights, kv_dtype = (choices.weights or ("plain",))[0], (choices.kv_dtypes or ("bfloat16",))[0]
        yield Layout(device=key, tensor_parallel=calibrated.devices, weights=weights, kv_dtype=kv_dtype)
        return
    most = 1 if device.kind == "cpu" else device.most_in_a_node
    for ranks in choices.tensor_parallel or DEGREES:
        if ranks * stages > most:
            continue
        for weights in _weights(choices, model, device):
            for kv_dtype in _kv_dtypes(choices, model, device):
                for whole_experts in _experts(model, ranks):
                    yield Layout(
                        device=key,
                        tensor_parallel=ranks,
                        pipeline_parallel=stages,
                        expert_parallel=whole_experts,
                        weights=weights,
                        kv_dtype=kv_dtype,
                        host_gib=choices.host_gib,
                    )


def layout_name(layout: Layout) -> str:
    """A layout in words: `4 x H100, TP 4, fp8 weights`."""
    name = layout.device.upper()
    parts = [f"{layout.devices} x {name}" if layout.devices > 1 else name]
    if layout.tensor_parallel > 1:
        parts.append(f"TP {layout.tensor_parallel}" + (" with whole experts" if layout.expert_parallel else ""))
    if layout.pipeline_parallel > 1:
        parts.append(f"PP {layout.pipeline_parallel}")
    if layout.weights != "plain":
        parts.append(f"{layout.weights} weights")
    if layout.kv_dtype != "bfloat16":
        parts.append(f"{layout.kv_dtype} cache")
    if layout.host_gib:
        parts.append(f"{layout.host_gib:g} GiB of main memory")
    return ", ".join(parts)


def _weights(choices: Choices, model: PlannedModel, device: Device) -> tuple[WeightFormat, ...]:
    if choices.weights is not None:
        return choices.weights
    if decoder_costs(model, model.forms("cpu" if device.kind == "cpu" else "gpu"), "bfloat16").bits < _SMALL_BITS:
        return ("plain",)
    return ("plain", "int8") if device.kind == "cpu" else ("plain", "fp8")


def _kv_dtypes(choices: Choices, model: PlannedModel, device: Device) -> tuple[KvDtype, ...]:
    if choices.kv_dtypes is not None:
        return choices.kv_dtypes
    small: KvDtype = "int8" if device.kind == "cpu" else "fp8"
    takes_small = all(small in kind.cache_dtypes for kind in model.spec.attention_kinds)
    return ("bfloat16", small) if takes_small else ("bfloat16",)


def _experts(model: PlannedModel, ranks: int) -> tuple[bool, ...]:
    return (False, True) if model.spec.num_moe_layers and ranks > 1 else (False,)
