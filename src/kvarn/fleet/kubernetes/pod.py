"""The first process of an engine's pod: `python -m kvarn.fleet.kubernetes.pod`. It starts the engine process, passes
SIGTERM on to it, which then drains, and ends as it ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import zmq

from kvarn.fleet.kubernetes.manifest import ADDRESS_VARIABLE, ENGINE_VARIABLE, EngineKeys, PodArguments
from kvarn.fleet.launch.engine_process import EngineProcess
from kvarn.fleet.launch.remote import with_local_checkpoint
from kvarn.replica.endpoint import CurveKeys, tcp_address
from kvarn.replica.server.heartbeat import HeartbeatThread
from kvarn.replica.spec import ReplicaSpec
from kvarn.replica.transport import engine_outbox_keys

_SIGNALLED = 128


def main() -> int:
    told = msgspec.json.decode(os.environ.pop(ENGINE_VARIABLE), type=PodArguments)
    spec, keys = told.spec, EngineKeys(Path(told.key_file).read_bytes().strip()).of(told.name).for_engine()
    process = EngineProcess.spawn(told.spec.factory.partition(":")[0])
    signal.signal(signal.SIGTERM, lambda number, _: process.popen.send_signal(number))
    address = tcp_address(os.environ[ADDRESS_VARIABLE], told.port)
    endpoint = msgspec.structs.replace(spec.endpoint, engine=address, keys=keys)
    with heartbeats(spec, keys):
        spec = with_local_checkpoint(spec)
    spec = msgspec.structs.replace(spec, endpoint=endpoint, spawned_at=process.spawned_at)
    process.start(msgspec.json.encode(spec))
    status = process.popen.wait()
    process.close()
    return status if status >= 0 else _SIGNALLED - status


@contextmanager
def heartbeats(spec: ReplicaSpec, keys: CurveKeys) -> Iterator[None]:
    """Tell the supervisor of the work that this process does, as an engine that loads does: a download may take longer
    than `replica.start_idle_timeout_s`."""
    context = zmq.Context()
    heartbeat = HeartbeatThread(context, spec.supervisor, spec.heartbeat_interval_s, engine_outbox_keys(keys))
    try:
        with heartbeat.loading():
            heartbeat.start()
            yield
    finally:
        heartbeat.stop()
        context.term()


if __name__ == "__main__":
    sys.exit(main())
