"""Debian's Prometheus and Alertmanager on free ports, and a webhook that keeps what it is told."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from benchmarks.server import free_port

from kvarn.observe.alerts.prometheus import rules_file
from kvarn.observe.alerts.rules import Rule

SCRAPE = "500ms"
SHORTEST_S = 2.0
"""Shortest window of increases: four scrapes."""
START_S = 60.0


def sped_up(rule: Rule, factor: float) -> Rule:
    """The same rule with times that are shorter by a factor; so is the threshold of one that compares a lag."""
    window_s = max(rule.window_s / factor, SHORTEST_S)
    is_lag = rule.unit == "seconds" and rule.for_s == 0
    return replace(
        rule,
        for_s=rule.for_s / factor,
        window_s=window_s,
        threshold=rule.threshold / factor if is_lag else rule.threshold,
    )


@dataclass
class AlertReceiver:
    """A webhook, `POST /...`, and a target of Prometheus, `GET /metrics`, which may be down."""

    is_down: bool = False
    port: int = 0
    messages: list[dict[str, Any]] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def received(self, path: str, message: dict[str, Any]) -> None:
        with self._changed:
            self.messages.append({"path": path, **message})
            self._changed.notify_all()

    def told(self, path: str, rule: str) -> list[str]:
        """`firing` or `resolved`, in order, of each message to a path about a rule."""
        alerts = [alert for message in self.messages if message["path"] == path for alert in message["alerts"]]
        return [alert["status"] for alert in alerts if alert["labels"]["alertname"] == rule]

    def wait(self, condition: Callable[[], bool], what: Callable[[], object], seconds: float = 120.0) -> None:
        """Wait for a message after which a condition holds; fail with what is there then."""
        with self._changed:
            assert self._changed.wait_for(condition, seconds), what()

    @contextmanager
    def serving(self) -> Iterator[AlertReceiver]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.received(self.path, json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self._answer(200)

            def do_GET(self) -> None:
                self._answer(503 if receiver.is_down else 200)

            def _answer(self, status: int) -> None:
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@dataclass
class Prometheus:
    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}, timeout=60).json()
        assert answer["status"] == "success", (expression, answer)
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result


@contextmanager
def monitoring(
    home: Path, targets: Sequence[str], rules: Sequence[Rule], receiver: AlertReceiver
) -> Iterator[Prometheus]:
    """Prometheus scrapes the targets and evaluates the rules twice a second; Alertmanager tells the receiver of
    them at `/alertmanager`."""
    prometheus_port, alertmanager_port = free_port(), free_port()
    _write(home / "alertmanager.yml", _alertmanager(receiver))
    (home / "kvarn.rules.yml").write_text(rules_file(rules))
    _write(home / "prometheus.yml", _prometheus(targets, f"127.0.0.1:{alertmanager_port}"))
    with ExitStack() as running:
        for name, port, options in (
            (
                "prometheus-alertmanager",
                alertmanager_port,
                ["--storage.path=alertmanager", "--cluster.listen-address="],
            ),
            (
                "prometheus",
                prometheus_port,
                ["--storage.tsdb.path=prometheus", "--enable-feature=exemplar-storage"],
            ),
        ):
            config = home / f"{name.removeprefix('prometheus-')}.yml"
            listen = f"--web.listen-address=127.0.0.1:{port}"
            command = [_program(name), f"--config.file={config}", listen, *options]
            running.enter_context(_running(command, home, f"http://127.0.0.1:{port}/-/ready"))
        yield Prometheus(f"http://127.0.0.1:{prometheus_port}")


def _program(name: str) -> str:
    return shutil.which(name) or pytest.skip(f"{name} is not installed: apt-get install {name}")


def _write(path: Path, settings: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(settings))


def _alertmanager(receiver: AlertReceiver) -> dict[str, Any]:
    times = {"group_wait": "0s", "group_interval": "200ms", "repeat_interval": "1h"}
    webhook = {"url": f"http://127.0.0.1:{receiver.port}/alertmanager"}
    return {
        "route": {"receiver": "test", "group_by": ["..."], **times},
        "receivers": [{"name": "test", "webhook_configs": [webhook]}],
    }


def _prometheus(targets: Sequence[str], alertmanager: str) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": SCRAPE},
        "rule_files": ["kvarn.rules.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        "scrape_configs": [{"job_name": "kvarn", "static_configs": [{"targets": [*targets]}]}],
    }


@contextmanager
def _running(command: list[str], home: Path, ready: str) -> Iterator[None]:
    log = home / f"{Path(command[0]).name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=home, stdout=output, stderr=output, start_new_session=True)
    try:
        deadline = time.monotonic() + START_S
        while not _is_ready(ready):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.05)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False
