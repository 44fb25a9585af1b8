"""Runs an engine process: build the service, send `Ready`, run the loop, send why it ended."""

from __future__ import annotations

import gc
import importlib
import logging
import signal
import sys
import time

import msgspec
import zmq

from kvarn.observe.logging import configure_logging
from kvarn.replica.addresses import engine_address, supervisor_address
from kvarn.replica.server.cpu import pin_to_cpus
from kvarn.replica.server.embed import EmbedService
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.server.loop import EngineLoop, HeartbeatThread, ResponseRouter
from kvarn.replica.server.parent import exit_when_closed
from kvarn.replica.spec import ReplicaSpec
from kvarn.replica.transport import SUPERVISOR_LINGER_MS, Inbox, Outbox
from kvarn.wire.messages import Failed, Progress, Ready

EXIT_FAILED = 1
"""Exit status after `Failed`."""

log = logging.getLogger(__name__)


def run_engine(began: float) -> int:
    """Become what standard input says and serve until stopped or drained; returns the exit status.

    Args:
        began: `time.monotonic()` when the process began to import.
    """
    imported = time.monotonic()
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return 0  # the parent gave up
    spec = msgspec.json.decode(line, type=ReplicaSpec)
    received = time.monotonic()
    exit_when_closed(sys.stdin.fileno())
    configure_logging(spec.log_level, form=spec.log_format)
    pin_to_cpus(spec.cpus)
    phases = {
        "interpreter": began - spec.spawned_at,
        "import": imported - began,
        "wait for the configuration": received - imported,
    }
    context = zmq.Context()
    supervisor = Outbox(context, supervisor_address(spec.sockets), SUPERVISOR_LINGER_MS)
    inbox, router = Inbox(context, engine_address(spec.sockets)), ResponseRouter(context)
    heartbeat = HeartbeatThread(context, supervisor_address(spec.sockets), spec.heartbeat_interval_s)
    heartbeat.start()
    try:
        _serve(spec, phases, supervisor, inbox, router, heartbeat)
    except Exception as error:
        # Errors of Kvarn's own say all there is to say, and the parent says it; others need their traceback.
        own = type(error).__module__.startswith("kvarn.")
        names = {"model": spec.model_config.name, "reason": str(error)}
        log.log(logging.DEBUG if own else logging.ERROR, "the engine cannot go on", exc_info=True, extra=names)
        supervisor.send(Failed(message=str(error) if own and str(error) else f"{type(error).__name__}: {error}"))
        return EXIT_FAILED
    finally:
        heartbeat.stop()
        inbox.close()
        router.close()
        supervisor.close()
        context.term()
    return 0


def _serve(
    spec: ReplicaSpec,
    phases: dict[str, float],
    supervisor: Outbox,
    inbox: Inbox,
    router: ResponseRouter,
    heartbeat: HeartbeatThread,
) -> None:
    module, _, function = spec.factory.partition(":")
    build = getattr(importlib.import_module(module), function)
    service: GenerateService | EmbedService = build(
        spec, lambda stage, fraction: supervisor.send(Progress(stage=stage, fraction=fraction))
    )
    try:
        loop = EngineLoop(service, inbox, router, heartbeat)
        signal.signal(signal.SIGTERM, lambda _signal, _frame: loop.request_drain())
        # Everything that exists by now lives as long as the process: take it out of every later collection.
        gc.freeze()
        gc.enable()
        phases = phases | service.card.start_s | {"total": time.monotonic() - spec.spawned_at}
        start_s = {name: round(seconds, 4) for name, seconds in phases.items()}
        supervisor.send(Ready(card=msgspec.structs.replace(service.card, start_s=start_s)))
        loop.run()
    finally:
        service.shutdown()
