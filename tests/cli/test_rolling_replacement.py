"""Servers that are replaced one after another by what plays Kubernetes here, while clients ask and never try again."""

from __future__ import annotations

from pathlib import Path

from benchmarks.rolling_replacement import load, replace_under_load, template

from kubelet import Deployment
from profiles import effort


async def test_no_request_fails_while_pods_are_replaced(tmp_path: Path) -> None:
    async with Deployment.running(template(tmp_path, shutdown_delay_s=1), effort(1, 2), tmp_path) as (deployment, url):
        steady = await load(url, iter(range(40)), clients=4)
        rolling, replaced, wrong = await replace_under_load(deployment, url, 0, clients=2, times=effort(1, 6))
        assert deployment.balancer.refused == 0
    assert steady.failures + rolling.failures + wrong == []
    assert steady.answers == 40 and rolling.answers > 100 and replaced >= effort(1, 6)
