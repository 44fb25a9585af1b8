"""Training jobs of a plan: how many devices each needs at least, and the memory of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast, get_args

from kvarn.planner.answer import TrainingJob
from kvarn.planner.devices import Device
from kvarn.planner.errors import PlanError
from kvarn.planner.models import PlannedModel
from kvarn.planner.request import TrainingRequest
from kvarn.planner.training import Objective, TrainingSetting, Tuned, fewest_devices, training_memory


def training_jobs(request: TrainingRequest, model: PlannedModel, devices: dict[str, Device]) -> Iterator[TrainingJob]:
    """Each job on each device. Raises PlanError for a job that has no such name."""
    for name in request.jobs:
        setting = _setting(name, request)
        for key, device in devices.items():
            yield _job(name, key, device, model, setting)


def _job(name: str, key: str, device: Device, model: PlannedModel, setting: TrainingSetting) -> TrainingJob:
    try:
        count = fewest_devices(model, setting, device.memory_bytes)
    except PlanError as error:
        return TrainingJob(name=name, device=key, devices=0, reason=str(error))
    memory = training_memory(model, replace(setting, devices=count))
    return TrainingJob(
        name=name,
        device=key,
        devices=count,
        peak=memory.peak,
        parts=memory.parts,
        update=memory.update,
        rollout=memory.rollout,
    )


def _setting(name: str, request: TrainingRequest) -> TrainingSetting:
    objective, _, tuned = name.lower().partition("-")
    if objective not in get_args(Objective) or (tuned or "full") not in get_args(Tuned):
        raise PlanError(
            f"there is no training job {name!r}: write it as sft, dpo, ppo or grpo, with -lora or -qlora after it "
            "where adapters are trained"
        )
    return TrainingSetting(
        objective=cast("Objective", objective),
        tuned=cast("Tuned", tuned or "full"),
        zero=request.zero,
        sequences=request.sequences,
        length=request.length,
    )
