"""Parts of a modelled engine: its executor, the memory of its host, the engine that computes prompts for it."""

from __future__ import annotations

import random
from collections.abc import Callable

from kvarn.clock import Clock
from kvarn.config.kv_tiers import KVTiersConfig
from kvarn.config.model import ModelConfig
from kvarn.costs.replica_model import ReplicaModel
from kvarn.costs.step_times import StepShape, StepTimes
from kvarn.engine.core import EngineParts
from kvarn.engine.memory.remote_prefill import PrefillPeer
from kvarn.engine.step_log import NoStepLog
from kvarn.engine.step_time import FixedStepTimes, StepTimeModel
from kvarn.kvstore import SegmentTier, TieredStore
from kvarn.simulator.host_memory import HostLink, host_memory
from kvarn.worker.modelled import ModelledExecutor
from kvarn.worker.proposers.modelled import ModelledProposer


class DeviceSpeed:
    """Times of a device's steps, which a fault makes longer."""

    def __init__(self, times: StepTimes) -> None:
        self.slowness = 1.0
        self._times = times

    def seconds(self, shape: StepShape, /) -> float:
        return self._times.seconds(shape) * self.slowness

    def decodes_s(self, rows: int, contexts: range, /) -> list[float]:
        seconds = self._times.decodes_s(rows, contexts)
        return seconds if self.slowness == 1.0 else [each * self.slowness for each in seconds]


def engine_parts(
    config: ModelConfig,
    model: ReplicaModel,
    speed: DeviceSpeed,
    clock: Clock,
    store: TieredStore | None,
    peer: PrefillPeer | None,
    *,
    learns: bool,
    chance: random.Random,
) -> EngineParts:
    """The parts of one engine. `store`: see `memory_of`; `learns`: whether the engine learns how long its steps take,
    which costs most of the time and tells it nothing as long as they take what the model says; `chance`: of guesses."""
    transfer = None
    if store is not None:
        assert model.host_link is not None, "a scenario with tiers has a link"
        transfer = HostLink(store, model.host_link, model.block_bytes).transfer
    proposer = _proposer(config, model, speed, clock, chance)
    executor = ModelledExecutor(
        speed,
        clock,
        num_blocks=model.kv_blocks,
        max_context_length=model.max_context_length,
        transfer=transfer,
        follow=None if proposer is None else proposer.follow,
    )
    return EngineParts(
        executor,
        config.engine,
        step_time=StepTimeModel.knowing(model.step_times) if learns else FixedStepTimes(model.step_times),
        proposer=proposer,
        speculation=config.speculation,
        step_log=NoStepLog(),
        connector=store,
        prefill_peer=peer,
        disaggregation=config.disaggregation,
    )


def _proposer(
    config: ModelConfig, model: ReplicaModel, speed: DeviceSpeed, clock: Clock, chance: random.Random
) -> ModelledProposer | None:
    method = config.speculation.chosen
    if model.speculation is None or method == "none":
        return None
    return ModelledProposer(
        model.speculation,
        is_free=method == "ngram",
        chance=chance,
        sleep=lambda seconds: clock.sleep(seconds * speed.slowness),
    )


def memory_of(
    config: ModelConfig, model: ReplicaModel, disk: SegmentTier | None, clock: Callable[[], float]
) -> TieredStore | None:
    """The memory of an engine's host that keeps blocks, as configured; a pair of engines has it in any case."""
    if config.kv_tiers is None and config.disaggregation is None:
        return None
    return host_memory(config.kv_tiers or KVTiersConfig(), model.block_bytes, disk, clock)
