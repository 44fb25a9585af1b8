"""Servers that are replaced one after another by what plays Kubernetes here, while clients ask and never try again."""

from __future__ import annotations

from pathlib import Path

from benchmarks.rolling_replacement import load, replace_under_load, template

from deployed_server import PAUSE_S
from kubelet import Deployment
from profiles import effort


async def test_no_request_fails_while_pods_are_replaced(tmp_path: Path) -> None:
    pods = template(tmp_path, shutdown_delay_s=3)  # far longer than the balancer takes to hear of an end
    async with Deployment.running(pods, effort(1, 2), tmp_path, endpoint_lag_s=0.2) as (deployment, url):
        steady = await load(url, iter(range(20)), clients=4)
        times = effort(1, 6)
        rolling, replaced, wrong = await replace_under_load(deployment, url, 0, clients=2, times=times, pause_s=PAUSE_S)
        assert deployment.balancer.refused == 0
    assert steady.failures + rolling.failures + wrong == []
    assert steady.answers == 20 and rolling.answers > 20 and replaced >= times
