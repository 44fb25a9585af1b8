"""Runs an engine process: build the service, send `Ready`, run the loop, send why it ended."""

from __future__ import annotations

import gc
import importlib
import logging
import mmap
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import zmq

from kvarn.clock import SYSTEM_CLOCK
from kvarn.observe.logging import configure_logging
from kvarn.replica.server.cpu import pin_to_cpus
from kvarn.replica.server.embed import EmbedService
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.server.heartbeat import HeartbeatThread
from kvarn.replica.server.loop import EngineLoop, ResponseRouter
from kvarn.replica.server.parent import exit_when_closed
from kvarn.replica.spec import ReplicaSpec, ReportProgress
from kvarn.replica.transport import Inbox, engine_outbox_keys
from kvarn.wire.messages import Progress, Ready, Stop
from kvarn.wire.supervision import Activate, Asleep, Drain, Failed, Supervise, Warm

if TYPE_CHECKING:  # it brings torch
    from kvarn.replica.server.sleep import SleepingModel

Service = GenerateService | EmbedService

_WAIT_S = 0.5
EXIT_FAILED = 1

log = logging.getLogger(__name__)


def run_engine(began: float) -> int:
    """Build the service that standard input describes and serve until stopped or drained; returns the exit status.
    `began`: `Clock.now` when the process began to import."""
    imported = SYSTEM_CLOCK.now()
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return 0  # the parent gave up
    spec = msgspec.json.decode(line, type=ReplicaSpec)
    received = SYSTEM_CLOCK.now()
    exit_when_closed(sys.stdin.fileno())
    configure_logging(spec.log_level, form=spec.log_format)
    pin_to_cpus(spec.cpus)
    if spec.gpus:
        # Before anything asks for a GPU; ranks inherit it and take the one of their number.
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(spec.gpus)
    phases = {
        "interpreter": began - spec.spawned_at,
        "import": imported - began,
        "wait for the configuration": received - imported,
    }
    context = zmq.Context()
    keys = spec.endpoint.keys
    router = ResponseRouter(context, spec.supervisor, keys)
    inbox = Inbox(context, spec.endpoint)
    heartbeat = HeartbeatThread(
        context, spec.supervisor, spec.heartbeat_interval_s, engine_outbox_keys(keys), spec.orphan_timeout_s
    )
    heartbeat.start()
    try:
        _serve(spec, phases, inbox, router, heartbeat)
    except Exception as error:
        # The parent logs Kvarn's own errors, which need no traceback.
        own = type(error).__module__.startswith("kvarn.")
        names = {"model": spec.model_config.name, "reason": str(error)}
        log.log(logging.DEBUG if own else logging.ERROR, "engine failed", exc_info=True, extra=names)
        message = str(error) if own and str(error) else f"{type(error).__name__}: {error}"
        router.supervisor.send(Failed(message=message))
        return EXIT_FAILED
    finally:
        heartbeat.stop()
        inbox.close()
        router.close()
        context.term()
    return 0


def _serve(
    spec: ReplicaSpec,
    phases: dict[str, float],
    inbox: Inbox,
    router: ResponseRouter,
    heartbeat: HeartbeatThread,
) -> None:
    module, _, function = spec.factory.partition(":")
    make: Callable[[ReportProgress], Service] = partial(getattr(importlib.import_module(module), function), spec)
    reading: AbstractContextManager[object] = _mapped(Path(spec.directory)) if spec.warm else nullcontext()
    waiting: Warm | Asleep | None = Warm() if spec.warm else None
    since = spec.spawned_at
    while True:
        with reading:
            if waiting is not None:
                began = SYSTEM_CLOCK.now()
                if not _wait_until_activated(waiting, inbox, router, heartbeat):
                    return
                phases = phases | {"wait to be activated": SYSTEM_CLOCK.now() - began}
            with heartbeat.loading():
                service = make(partial(_report, router))
        total_s = SYSTEM_CLOCK.now() - since
        sleep = _turn_loop(service, phases, total_s, inbox, router, heartbeat)
        if sleep is None:
            return
        del service
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is left to drain, and the handler holds the service
        since = SYSTEM_CLOCK.now()
        with heartbeat.loading():
            sleeping = sleep()
        phases = {"fall asleep": SYSTEM_CLOCK.now() - since}
        router.disconnect_all()
        log.info(
            "weights moved to main memory", extra={"model": spec.model_config.name, "moved_bytes": sleeping.nbytes}
        )
        make, reading, waiting = sleeping.wake, nullcontext(), Asleep()


def _turn_loop(
    service: Service,
    phases: dict[str, float],
    total_s: float,
    inbox: Inbox,
    router: ResponseRouter,
    heartbeat: HeartbeatThread,
) -> Callable[[], SleepingModel] | None:
    """Serve until stopped, drained or told to sleep. Returns the function that puts the model to sleep, or None."""
    try:
        phases = phases | service.card.start_s | {"total": total_s}
        start_s = {name: round(seconds, 4) for name, seconds in phases.items()}
        ready = Ready(card=msgspec.structs.replace(service.card, start_s=start_s))
        loop = EngineLoop(service, inbox, router, heartbeat, ready)
        signal.signal(signal.SIGTERM, lambda _signal, _frame: loop.request_drain())
        # Everything that exists by now lives as long as the process: take it out of every later collection.
        gc.freeze()
        gc.enable()
        router.supervisor.send(ready)
        loop.run()
        return service.sleep if loop.sleeps else None
    finally:
        service.shutdown()


def _report(router: ResponseRouter, stage: str, fraction: float) -> None:
    router.supervisor.send(Progress(stage=stage, fraction=fraction))


@contextmanager
def _mapped(directory: Path) -> Iterator[int]:
    """Map a checkpoint's weights and have the system read them ahead; yields their bytes."""
    maps = []
    try:
        for path in sorted(directory.glob("*.safetensors")):
            with path.open("rb") as file:
                found = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            found.madvise(mmap.MADV_WILLNEED)
            maps.append(found)
        yield sum(len(each) for each in maps)
    finally:
        for each in maps:
            each.close()


def _wait_until_activated(
    waiting: Warm | Asleep, inbox: Inbox, router: ResponseRouter, heartbeat: HeartbeatThread
) -> bool:
    known = "asleep" if isinstance(waiting, Asleep) else "warm"
    router.supervisor.send(waiting)
    while True:
        for message in inbox.receive(_WAIT_S):
            match message:
                case Activate():
                    return True
                case Stop() | Drain():
                    return False
                case Supervise():
                    if heartbeat.heard(message.address):
                        router.supervised_by(message.address)
                    if message.knows != known:
                        router.supervisor.send(waiting)
