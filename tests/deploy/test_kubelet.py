"""The kubelet of the tests does with processes what Kubernetes does with containers."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx
import pytest

from kubelet import Deployment, Pod, PodTemplate, Probe

SERVER = """
import http.server, signal, sys
port, deaf_after, mode = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
asked = 0
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global asked
        asked += self.path == "/health"
        status = 500 if asked > deaf_after else 200
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
if mode == "broken":
    sys.exit("no such model")
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
QUICK = Probe("/health", period_s=0.05, failure_threshold=2)


def template(deaf_after: int = 10**9, mode: str = "plain") -> PodTemplate:
    return PodTemplate(
        command=(sys.executable, "-c", SERVER, "{port}", str(deaf_after), mode),
        startup=Probe("/health", period_s=0.05, failure_threshold=200),
        readiness=Probe("/ready", period_s=0.05, failure_threshold=1),
        liveness=QUICK,
        grace_s=0.2,
    )


async def until(pod: Pod, restarts: int) -> None:
    async with asyncio.timeout(60):
        while pod.restarts < restarts:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_what_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    async with Deployment.running(template(mode="stubborn"), 1, tmp_path, endpoint_lag_s=0) as (deployment, url):
        async with httpx.AsyncClient(base_url=url) as client:
            assert (await client.get("/anything")).status_code == 200
        (old,) = await deployment.replace()
        assert (old.was_killed, old.exits, old.restarts, old.state) == (True, [-9], 0, "gone")


async def test_what_fails_its_liveness_probe_is_started_again(tmp_path: Path) -> None:
    async with Deployment.running(template(deaf_after=3), 1, tmp_path, endpoint_lag_s=0) as (deployment, _):
        (pod,) = deployment.pods
        await until(pod, restarts=2)
        assert pod.exits[:2] == [-15, -15] and not pod.was_killed


async def test_what_ends_again_and_again_before_it_is_ready_is_told_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no such model"):
        async with Deployment.running(template(mode="broken"), 1, tmp_path, endpoint_lag_s=0):
            pass
