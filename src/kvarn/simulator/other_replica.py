"""A measured replica with other weights, another cache or on another device, by the bytes that it reads and holds."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from kvarn.costs.replica_model import ReplicaModel
from kvarn.planner.errors import PlanError
from kvarn.planner.models import PlannedModel, described
from kvarn.shapes import BLOCK_SIZE, KvDtype
from kvarn.shapes.packing import Quantization
from kvarn.specs.place import Place
from kvarn.specs.weight_bytes import weight_bytes
from kvarn.wire.what_if import WhatIf


@dataclass(frozen=True, slots=True)
class OtherReplica:
    """The replica after the changes, and what its figures take for granted."""

    replica: ReplicaModel
    notes: tuple[str, ...]


def other_replica(asked: WhatIf) -> OtherReplica:
    """Raises PlanError: what is asked for cannot be told of this model."""
    changes, replica = asked.changes, asked.replica
    if changes.device is not None:
        return _on_device(asked, changes.device)
    notes = ["Steps take as long as the engines measured them; no calibration was used."]
    if changes.quantization is None and changes.kv_cache_dtype is None:
        return OtherReplica(replica, tuple(notes))
    model = _model_of(asked)
    weights_now, block_now = _bytes(model, asked.quantization, asked.kv_cache_dtype)
    weights, block = _bytes(
        model, changes.quantization or asked.quantization, changes.kv_cache_dtype or asked.kv_cache_dtype
    )
    times, pool = replica.step_times, replica.kv_blocks * block_now
    if changes.quantization is not None:
        reading = min(times.fixed_s, weights_now / asked.read_bytes_per_s) if asked.read_bytes_per_s else times.fixed_s
        times = replace(times, fixed_s=times.fixed_s - reading * (1 - weights / weights_now))
        notes.append(
            f"Weights take {weights / 1e9:.3g} GB in place of {weights_now / 1e9:.3g} GB and are read as fast as now; "
            "multiplying takes as long as now."
        )
        if asked.config["models"][0].get("kv_cache_gib") is None:
            pool += weights_now - weights
            notes.append("The memory that the weights leave is given to the cache.")
    if changes.kv_cache_dtype is not None:
        times = replace(times, decode_token_s=times.decode_token_s * block / block_now)
        notes.append(
            f"A cached token takes {block / BLOCK_SIZE:,.0f} bytes in place of {block_now / BLOCK_SIZE:,.0f} and is "
            "read as fast as now."
        )
    return OtherReplica(replace(replica, step_times=times, kv_blocks=max(1, int(pool // block))), tuple(notes))


def _model_of(asked: WhatIf) -> PlannedModel:
    if asked.checkpoint is None:
        raise PlanError("the model has no config.json here: its bytes are not known, only settings can be changed")
    return described(asked.checkpoint, name=asked.config["models"][0]["name"])


def _bytes(model: PlannedModel, quantization: str, kv_dtype: str) -> tuple[float, float]:
    """Bytes of the weights and of a block, over all ranks."""
    at_load: dict[str, Quantization] = {"int8": "int8", "int4": "int4", "fp8": "fp8"}
    kinds: dict[str, KvDtype] = {"float32": "float32", "bfloat16": "bfloat16", "int8": "int8", "fp8": "fp8"}
    forms = model.forms(quantization=None if model.stored is not None else at_load.get(quantization))
    dtype = kinds.get(kv_dtype, "bfloat16")
    cached = sum(layer.attention.cache_bytes_per_token(dtype) for layer in model.spec.layers)
    if not cached:
        raise PlanError("the model caches no keys and values: only settings can be changed")
    return float(sum(weight_bytes(model.spec, Place(), forms).values())), float(BLOCK_SIZE * cached)


def _on_device(asked: WhatIf, device: str) -> OtherReplica:
    """The planner's best replica on a device, for the requests as they were."""
    from kvarn.planner import plan  # needed by no other change
    from kvarn.planner.request import Choices, MoneyRequest, PlanRequest, SloRequest, TrafficRequest

    if asked.checkpoint is None:
        raise PlanError("the model has no config.json here: another device cannot be planned")
    requests, changes = asked.requests, asked.changes
    request = PlanRequest(
        model=asked.checkpoint,
        name=asked.config["models"][0]["name"],
        devices=(device,),
        traffic=TrafficRequest(
            rate_rps=max(1e-3, len(requests) / asked.duration_s),
            input_tokens=max(1.0, sum(each.input_tokens for each in requests) / len(requests)),
            output_tokens=max(1.0, sum(each.output_tokens for each in requests) / len(requests)),
        ),
        slo=SloRequest(ttft_s=60.0, tpot_s=10.0),
        money=MoneyRequest(prices={device: 1.0}),
        choices=Choices(
            weights=(changes.quantization or "plain",),
            kv_dtypes=(_kv(changes.kv_cache_dtype or asked.kv_cache_dtype),),
            disaggregation=False,
        ),
        max_context_length=asked.replica.max_context_length,
    )
    made = plan(request)
    if not made.candidates:
        reasons = "; ".join(each.reason for each in made.rejected[:2]) or "no configuration does"
        raise PlanError(f"the model does not fit on {device}: {reasons}")
    best = made.candidates[0]
    note = f"Steps on {device} are the planner's ({best.name}), not measured: the error is that of its device model"
    error = "." if best.replica.error is None else f", {best.replica.error:.0%} of a step."
    return OtherReplica(
        best.replica, (note + error, "Time that the machine now running adds between steps is not carried over.")
    )


def _kv(name: str) -> KvDtype:
    kinds: dict[str, KvDtype] = {"float32": "float32", "int8": "int8", "fp8": "fp8"}
    return kinds.get(name, "bfloat16")
