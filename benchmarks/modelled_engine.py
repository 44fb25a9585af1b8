"""An engine process without a model: all else is real, and steps sleep as long as `StepTimes` say."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from benchmarks.engine_process import launch_engine
from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.replica import ReplicaConfig
from kvarn.config.schema import ModelConfig
from kvarn.costs.step_times import StepTimes
from kvarn.engine.core import EngineParts
from kvarn.engine.step_time import StepTimeModel
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.replica.client.zmq_client import ZmqReplicaClient
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.spec import ReplicaSpec, ReportProgress
from kvarn.wire.messages import ModelCard
from kvarn.worker.modelled import ModelledExecutor

_VARIABLE = "MODELLED_STEP_TIMES"
BLOCKS, CONTEXT = 16384, 4096


def card_of(context: int = CONTEXT, num_blocks: int = BLOCKS) -> ModelCard:
    """Card of a model that does not exist."""
    return ModelCard(
        kind="generate",
        architecture="modelled",
        dtype="none",
        vocab_size=4096,
        max_context_length=context,
        num_parameters=0,
        kv_blocks=num_blocks,
    )


def launch_modelled_engine(
    model: ModelConfig, directory: Path, times: StepTimes, config: ReplicaConfig | None = None
) -> tuple[EngineSupervisor, ZmqReplicaClient]:
    """Launch such an engine; `start` the supervisor in the event loop. `directory` has the tokenizer."""
    os.environ[_VARIABLE] = msgspec.json.encode(times).decode()
    return launch_engine(model, directory, "benchmarks.modelled_engine:build", config)


def build(spec: ReplicaSpec, _report: ReportProgress) -> GenerateService:
    """The engine process's service. It knows its step times from the start."""
    times = msgspec.json.decode(os.environ[_VARIABLE], type=StepTimes)
    executor = ModelledExecutor(times.seconds, SYSTEM_CLOCK, num_blocks=BLOCKS, max_context_length=CONTEXT)
    known = StepTimeModel.knowing(times) if times.fixed_s else StepTimeModel()
    return GenerateService(EngineParts(executor, spec.model_config.engine, step_time=known), card_of())
