"""An engine process that stands still, beside one that speaks."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

from conditions import until
from kvarn.catalog.replicas import ReplicaSet
from kvarn.config.replica import RoutingConfig
from kvarn.replica.client.protocol import ReplicaClient
from kvarn.routing.candidate import RouteRequest
from kvarn.wire.messages import Submit


async def test_a_stopped_engine_gets_no_requests_while_another_speaks_and_gets_some_when_it_goes_on(
    make_replica: Callable[..., Any], submit: Callable[..., Submit]
) -> None:
    engines = {name: make_replica(step_s=0.002) for name in ("stopped", "other")}
    await asyncio.gather(*[each.wait_until_ready() for each in engines.values()])
    replicas = ReplicaSet(engines, routing=RoutingConfig(policy="round_robin"))

    async def keep_busy(engine: ReplicaClient) -> None:
        async for _ in engine.generate(submit(max_tokens=50_000)):
            pass

    def chosen() -> set[str]:
        choices = [replicas.choose(RouteRequest(1)) for _ in range(4)]
        for each in choices:
            assert each is not None
            each.end()
        return {each.replica for each in choices if each is not None}

    work = [asyncio.create_task(keep_busy(each)) for each in engines.values()]
    try:
        for each in engines.values():
            await until(lambda each=each: each.stats.step_times is not None, "its steps are measured")
        await until(lambda: chosen() == {"stopped", "other"}, "both are heard")
        os.kill(engines["stopped"].pid, signal.SIGSTOP)
        await until(lambda: chosen() == {"other"}, "its silence is noticed")
        os.kill(engines["stopped"].pid, signal.SIGCONT)
        await until(lambda: chosen() == {"stopped", "other"}, "it is heard again")
    finally:
        for each in work:
            each.cancel()
        await asyncio.gather(*work, return_exceptions=True)
