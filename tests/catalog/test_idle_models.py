"""Which models count as used: those that somebody asks, not those that are only watched for silent failure."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from conditions import until
from fake_replica import GENERATE_CARD, FakeReplica
from gateway_fixtures import make_server
from kvarn.catalog.models import ServedModel
from kvarn.config.fleet import AutoscaleConfig
from kvarn.fleet.autoscale.loop import Autoscaling
from kvarn.fleet.desired import Desired
from kvarn.gateway.app import create_app
from kvarn.quality.golden_models import GoldenModel
from kvarn.quality.monitor import Drift
from kvarn.wire.messages import EngineStats


@pytest.mark.parametrize(("asked_by_others", "replicas"), [(0, 0), (1, 1)])
async def test_a_golden_prompt_that_runs_at_each_look_keeps_no_replica(
    checkpoint: Path, asked_by_others: int, replicas: int
) -> None:
    config = make_server(checkpoint).config
    scale = AutoscaleConfig(min_replicas=0, idle_s=60, scale_in_delay_s=0)
    model = config.models[0].model_copy(update={"autoscale": scale})
    replica = FakeReplica(GENERATE_CARD, hold=asyncio.Event())
    served = ServedModel(model.name, model, [replica], checkpoint)
    now = 0.0

    async def metrics() -> CollectorRegistry:
        return CollectorRegistry()

    async def take_out(drift: Drift) -> None:
        raise AssertionError(drift)

    autoscaling = Autoscaling(config, lambda: [served], metrics, lambda: now)
    gateway = create_app(config, {model.name: served}, autoscaling=autoscaling, take_out=take_out).state.gateway
    assert autoscaling.count(Desired(model), 1) == 1
    watched, (name,) = GoldenModel(served, gateway.text, 1), served.replicas
    probe = asyncio.create_task(gateway.control.monitor.probe(watched, name))
    await until(lambda: len(replica.submitted) == 1, "it is asked")
    replica.stats = EngineStats(running=1 + asked_by_others)
    for look in range(20):
        now = 5.0 * look
        await autoscaling.look()
    assert autoscaling.count(Desired(model), 1) == replicas
    assert gateway.metrics.registry.get_sample_value("kvarn_replicas_needed", {"model": model.name}) == 0
    autoscaling.forget()
    assert gateway.metrics.registry.get_sample_value("kvarn_replicas_needed", {"model": model.name}) is None
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)
    assert gateway.control.monitor.asked(name) == 0
