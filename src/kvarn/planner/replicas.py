"""A modelled replica from the device table, for the simulator: a served model's settings on a device."""

from __future__ import annotations

from kvarn.config.model import ModelConfig
from kvarn.costs.replica_model import ReplicaModel
from kvarn.planner.answer import Layout
from kvarn.planner.device_model import DeviceModel
from kvarn.planner.devices import device_table
from kvarn.planner.efficiency import step_error
from kvarn.planner.lengths import Lengths, Workload
from kvarn.planner.memory import ReplicaSetting, decoder_costs, plan_memory
from kvarn.planner.models import PlannedModel
from kvarn.planner.sizing import replica_model, usual_steps

_USUAL = Workload(prompt=Lengths((1024.0,)), output=Lengths((256.0,)))
"""Requests around which a step's time is made linear, where nothing is known of the traffic."""


def table_replica(model: PlannedModel, device: str, config: ModelConfig) -> ReplicaModel:
    """One replica of a served model, as its configuration divides and holds it, on a device of the table.

    Raises PlanError where there is no such device, or the model does not fit.
    """
    key, row = device_table().find(device)
    tiers = config.kv_tiers
    setting = ReplicaSetting(
        kernels="cpu" if row.kind == "cpu" else "gpu",
        quantization=config.quantization,
        kv_cache_dtype=config.kv_cache_dtype,
        tensor_parallel=config.tensor_parallel_size,
        pipeline_parallel=config.pipeline_parallel_size,
        expert_parallel=config.expert_parallel,
        max_num_seqs=config.engine.max_num_seqs,
        token_budget=config.engine.token_budget,
        max_context_length=config.max_context_length,
        kv_cache_gib=config.kv_cache_gib,
        gpu_memory_utilization=config.hardware.gpu_memory_utilization,
    )
    memory = plan_memory(model, setting, int(row.memory_bytes))
    layout = Layout(
        device=key,
        tensor_parallel=config.tensor_parallel_size,
        pipeline_parallel=config.pipeline_parallel_size,
        expert_parallel=config.expert_parallel,
        weights=config.quantization or "plain",
        kv_dtype=memory.kv_dtype,
        host_gib=tiers.host_gib if tiers is not None else 0.0,
    )
    forms = model.forms(setting.kernels, setting.dtype, setting.quantization)
    on_device = DeviceModel(row, layout, decoder_costs(model, forms, memory.kv_dtype), model.spec)
    steps = list(usual_steps(_USUAL, memory.cache.max_num_seqs))
    times = on_device.step_times(steps)
    error = step_error(row, layout.devices, on_device.fit_error(times, steps))
    return replica_model(memory, on_device, times, error.value)
