"""Engine processes for the benchmarks: a real one, or one without a model, whose steps sleep as `StepTimes` say."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.model import ModelConfig
from kvarn.config.replica import ReplicaConfig
from kvarn.costs.step_times import StepTimes
from kvarn.engine.core import EngineParts
from kvarn.engine.step_time import StepTimeModel
from kvarn.fleet.launch.engine_process import EngineProcess
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.replica.client.zmq_client import ZmqReplicaClient
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.spec import DEFAULT_FACTORY, ReplicaSpec, ReportProgress
from kvarn.wire.messages import ModelCard
from kvarn.worker.modelled import ModelledExecutor

ROOT = Path(__file__).resolve().parents[1]
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


def launch_engine(
    model: ModelConfig, directory: Path, times: StepTimes | None = None, config: ReplicaConfig | None = None
) -> tuple[EngineSupervisor, ZmqReplicaClient]:
    """Launch an engine, a modelled one where `times` are given; `start` the supervisor in the event loop.
    `directory` has the checkpoint, or only the tokenizer."""
    os.environ["PYTHONPATH"] = str(ROOT)
    factory = DEFAULT_FACTORY
    if times is not None:
        os.environ[_VARIABLE] = msgspec.json.encode(times).decode()
        factory = "benchmarks.modelled_engine:build"
    spec = ReplicaSpec(model=model.model_dump_json(), directory=str(directory), factory=factory)
    supervisor, client = EngineSupervisor(spec, config or ReplicaConfig()), ZmqReplicaClient(model.name)
    supervisor.subscribe(client.update)
    supervisor.launch(EngineProcess.spawn(factory.partition(":")[0]))
    return supervisor, client


def build(spec: ReplicaSpec, _report: ReportProgress) -> GenerateService:
    """The engine process's service. It knows its step times from the start."""
    times = msgspec.json.decode(os.environ[_VARIABLE], type=StepTimes)
    executor = ModelledExecutor(times.seconds, SYSTEM_CLOCK, num_blocks=BLOCKS, max_context_length=CONTEXT)
    known = StepTimeModel.knowing(times) if times.fixed_s else StepTimeModel()
    return GenerateService(EngineParts(executor, spec.model_config.engine, step_time=known), card_of())
