"""The actor that holds one engine process on a machine of a Ray cluster. Runs in a worker process of Ray's.

Ray finds the place and tells when it is lost; tokens never pass through it. The engine ends with its actor, the actor
some time after its engine: until then it says why the engine ended.
"""

from __future__ import annotations

import os
import signal
import threading

import msgspec
import ray
from ray.util.placement_group import get_current_placement_group, remove_placement_group

from kvarn.clock import SYSTEM_CLOCK
from kvarn.fleet.launch.engine_process import EngineProcess
from kvarn.fleet.launch.process_exit import describe_exit
from kvarn.fleet.launch.remote import with_local_checkpoint
from kvarn.fleet.ray.messages import Place
from kvarn.replica.endpoint import free_address
from kvarn.replica.spec import ReplicaSpec

_KEPT_S = 30.0


class EngineActor:
    """Starts an engine process at once. `spec`: JSON of the `ReplicaSpec`, with keys."""

    def __init__(self, spec: bytes) -> None:
        self._ended = threading.Event()
        self._reason: str | None = None
        self._started: list[EngineProcess] = []
        self._is_started = threading.Event()
        self._error: OSError | None = None
        parsed = with_local_checkpoint(msgspec.json.decode(spec, type=ReplicaSpec))
        host = ray.util.get_node_ip_address()
        assert parsed.endpoint.keys is not None, "engines on other machines have keys"
        shared = msgspec.structs.replace(parsed.endpoint, engine=free_address(host))
        self._endpoint = msgspec.structs.replace(shared, keys=parsed.endpoint.keys.for_gateway())
        own = msgspec.structs.replace(shared, keys=parsed.endpoint.keys.for_engine())
        # The engine dies with the thread that starts it: this one lives as long.
        threading.Thread(target=self._hold, args=(msgspec.structs.replace(parsed, endpoint=own),), daemon=True).start()
        self._is_started.wait()
        if self._error is not None:
            raise self._error

    def describe(self) -> bytes:
        place = Place(self._endpoint, self._started[0].popen.pid, ray.get_runtime_context().get_node_id())
        return msgspec.json.encode(place)

    def wait(self, timeout_s: float) -> tuple[bool, str | None]:
        """Wait for the engine's end: whether it has come, and why; None after a clean exit."""
        return self._ended.wait(timeout_s), self._reason

    def _hold(self, spec: ReplicaSpec) -> None:
        try:
            process = EngineProcess.spawn(spec.factory.partition(":")[0])
        except OSError as error:
            self._error = error
            self._is_started.set()
            return
        self._started.append(process)
        process.start(msgspec.json.encode(msgspec.structs.replace(spec, spawned_at=process.spawned_at)))
        self._is_started.set()
        status = process.popen.wait()
        self._reason = None if status == 0 else describe_exit(status)
        process.close()
        self._ended.set()
        SYSTEM_CLOCK.sleep(_KEPT_S)
        group = get_current_placement_group()
        if group is not None:
            remove_placement_group(group)
        os.kill(os.getpid(), signal.SIGKILL)
