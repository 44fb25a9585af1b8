"""An API server of Kubernetes, as far as the launcher uses one: pods of one namespace, and the verbs that its role has.

Pods are objects only, until a test sets their status, or `runs_processes` has each one run its command on this machine.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from kvarn.config.kubernetes import KubernetesConfig
from kvarn.fleet.launch.process_exit import exit_of

NAMESPACE, TOKEN, OWN_POD = "llm", "a token", "gateway-0"
ROLE = ("create", "get", "list", "watch", "delete")
"""The verbs on pods that docs/operate/kubernetes_launcher.md gives the gateway."""


class FakeKubernetes:
    """Speaks HTTP in the running event loop. Pods get addresses of their own on this machine."""

    def __init__(self, directory: Path, *, runs_processes: bool = False) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.verbs: list[str] = []
        """Of all requests that were allowed, in order."""
        self.events: list[tuple[int, dict[str, Any]]] = []
        self.refuses: tuple[int, str] | None = None
        """Status and message with which it refuses to create pods."""
        self.refuses_deletes = False
        self.loses_answers = False  # those to requests that create pods
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._runs_processes = runs_processes
        self._versions, self._hosts = itertools.count(1), itertools.count(2)
        self._version = 0
        self._changed = asyncio.Event()
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._oldest = 0
        self._directory = directory
        for name, text in {"token": TOKEN, "namespace": NAMESPACE, "key": "k" * 40}.items():
            (directory / name).write_text(text)
        routes = [
            Route("/api/v1/namespaces/{namespace}/pods", self._collection, methods=["GET", "POST"]),
            Route("/api/v1/namespaces/{namespace}/pods/{name}", self._pod, methods=["GET", "DELETE", "PATCH"]),
        ]
        settings = uvicorn.Config(Starlette(routes=routes), port=0, log_level="error", lifespan="off")
        self._server = uvicorn.Server(settings)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._server.config.load()
        self._serving = asyncio.create_task(self._server.serve())
        while not self._server.started:  # noqa: ASYNC110  uvicorn has no event
            await asyncio.sleep(0.01)

    @property
    def config(self) -> KubernetesConfig:
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return KubernetesConfig(
            api_server=f"http://127.0.0.1:{port}",
            credentials=str(self._directory),
            key_file=str(self._directory / "key"),
            image="registry.example/kvarn:0.2.0",
            listen_address="127.0.0.1",
            orphan_timeout_s=60,
        )

    async def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
        self.end_watches(forever=True)
        self._server.should_exit = self._server.force_exit = True
        if self._serving is not None:
            await self._serving
        for task in self._tasks:
            task.cancel()

    # What a cluster does -------------------------------------------------------------------------------------------

    def set_status(self, name: str, **status: Any) -> None:
        """Change a pod's status: `phase`, `podIP`, `conditions`, `containerStatuses`, ..."""
        self.pods[name]["status"] |= status
        self._tell("MODIFIED", self.pods[name])

    def run(self, name: str) -> None:
        """The pod's node has started its process."""
        self.set_status(name, phase="Running", podIP=f"127.0.1.{next(self._hosts)}", conditions=[])

    def announce_end(self, name: str, grace_s: float) -> None:
        """A node that is drained evicts the pod."""
        self.pods[name]["metadata"] |= {
            "deletionTimestamp": (datetime.now(UTC) + timedelta(seconds=grace_s)).isoformat(),
            "deletionGracePeriodSeconds": grace_s,
        }
        self._tell("MODIFIED", self.pods[name])
        if name in self.processes:
            self.processes[name].send_signal(signal.SIGTERM)

    def remove(self, name: str) -> None:
        self._tell("DELETED", self.pods.pop(name))

    def end_watches(self, *, forever: bool = False, forget: bool = False) -> None:
        """Close the connections of those who watch; `forget` what has changed so far."""
        self._stopping = forever
        if forget:
            self._oldest = self._version
        self.events.append((next(self._versions), {}))
        self._wake()

    # HTTP ------------------------------------------------------------------------------------------------------------

    async def _collection(self, request: Request) -> Response:
        if request.method == "POST":
            answer = self._refusal(request, "create") or self._create(json.loads(await request.body()))
            return _status(504, "timed out") if self.loses_answers else answer
        watches = request.query_params.get("watch") == "true"
        if (refusal := self._refusal(request, "watch" if watches else "list")) is not None:
            return refusal
        key, _, value = request.query_params["labelSelector"].partition("=")
        if watches:
            since = int(request.query_params["resourceVersion"])
            return StreamingResponse(self._watch(since, key, value), media_type="application/json")
        items = [pod for pod in self.pods.values() if pod["metadata"]["labels"].get(key) == value]
        return JSONResponse({"kind": "PodList", "metadata": {"resourceVersion": str(self._version)}, "items": items})

    async def _pod(self, request: Request) -> Response:
        verb = {"GET": "get", "DELETE": "delete"}.get(request.method, request.method)
        if (refusal := self._refusal(request, verb)) is not None:
            return refusal
        pod = self.pods.get(name := request.path_params["name"])
        if pod is None:
            return _status(404, f'pods "{name}" not found')
        if verb == "delete":
            if self.refuses_deletes:
                return _status(503, "overloaded")
            self._delete(name, pod, json.loads(await request.body())["gracePeriodSeconds"])
        return JSONResponse(pod)

    def _refusal(self, request: Request, verb: str) -> Response | None:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return _status(401, "Unauthorized")
        if verb not in ROLE or request.path_params["namespace"] != NAMESPACE:
            return _status(403, f"pods is forbidden: cannot {verb}")
        self.verbs.append(verb)
        return None

    def _create(self, pod: dict[str, Any]) -> Response:
        name = pod["metadata"]["name"]
        if self.refuses is not None:
            return _status(*self.refuses)
        if name in self.pods:
            return _status(409, f'pods "{name}" already exists')
        self.pods[name] = pod = pod | {"status": {"phase": "Pending"}}
        self._tell("ADDED", pod)
        if self._runs_processes:
            self._start(name, pod)
        return JSONResponse(pod, 201)

    def _delete(self, name: str, pod: dict[str, Any], grace_s: float) -> None:
        if name in self.processes:
            self.announce_end(name, grace_s)
            asyncio.get_running_loop().call_later(grace_s, self.processes[name].kill)
        elif pod["status"]["phase"] == "Running" and grace_s:
            self.announce_end(name, grace_s)
        else:
            self.remove(name)

    def _start(self, name: str, pod: dict[str, Any]) -> None:
        host, (container,) = f"127.0.1.{next(self._hosts)}", pod["spec"]["containers"]
        environment = {each["name"]: each.get("value", host) for each in container["env"]}
        process = subprocess.Popen(
            [sys.executable, *container["command"][1:]], env={**os.environ, **environment}, start_new_session=True
        )
        self.processes[name] = process
        self.set_status(name, phase="Running", podIP=host)
        task = asyncio.create_task(self._await_exit(name, process))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await_exit(self, name: str, process: subprocess.Popen[bytes]) -> None:
        status = await exit_of(process)
        code = status if status >= 0 else 128 - status
        ended = {"exitCode": code, "reason": "Error" if code else "Completed"}
        del self.processes[name]
        is_deleted = "deletionTimestamp" in self.pods[name]["metadata"]
        phase = "Failed" if code else "Succeeded"
        self.set_status(name, phase=phase, containerStatuses=[{"state": {"terminated": ended}}])
        if is_deleted and name in self.pods:
            self.remove(name)

    def _tell(self, kind: str, pod: dict[str, Any]) -> None:
        self._version = next(self._versions)
        pod["metadata"]["resourceVersion"] = str(self._version)
        self.events.append((self._version, json.loads(json.dumps({"type": kind, "object": pod}))))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _watch(self, since: int, key: str, value: str) -> AsyncGenerator[bytes, None]:
        if since < self._oldest:
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            yield json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n"
            return
        told = next((place for place, (version, _) in enumerate(self.events) if version > since), len(self.events))
        first = True
        while not self._stopping:
            for version, event in self.events[told:]:
                told += 1
                if not event:
                    if first:  # it asked after that
                        continue
                    return
                if version > since and event["object"]["metadata"]["labels"].get(key) == value:
                    yield json.dumps(event).encode() + b"\n"
            first = False
            await self._changed.wait()


def _status(code: int, message: str) -> JSONResponse:
    return JSONResponse({"kind": "Status", "status": "Failure", "code": code, "message": message}, code)
