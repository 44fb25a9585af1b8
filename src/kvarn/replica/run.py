"""The life of an engine process: build the service, say that it is ready, run the loop, say why it ended."""

from __future__ import annotations

import gc
import importlib
import logging
import signal
import time

import msgspec
import zmq

from kvarn.observe.logging import configure_logging
from kvarn.replica.cores import keep_to
from kvarn.replica.link import EngineLink
from kvarn.replica.loop import EngineLoop
from kvarn.replica.pulse import Pulse
from kvarn.replica.service import Service, ServiceFactory
from kvarn.replica.spec import Handover, ReplicaSpec
from kvarn.wire.messages import Failed, Progress, Ready

EXIT_FAILED = 1
"""Exit status after `Failed`."""

log = logging.getLogger(__name__)


def run_engine(handover: Handover, phases: dict[str, float]) -> int:
    """Serve until stopped or drained; returns the exit status.

    Args:
        handover: What to become and where to listen.
        phases: Seconds already spent, by phase; shown with the service's own in `ModelCard.start_s`.
    """
    spec = handover.spec
    configure_logging(spec.log_level, form=spec.log_format)
    keep_to(spec.processors)
    context = zmq.Context()
    link = EngineLink(context, handover.inbox, handover.outbox)
    pulse = Pulse(context, handover.outbox, spec.heartbeat_interval_s)
    pulse.start()
    try:
        _serve(handover, phases, link, pulse)
    except Exception as error:
        # What we raise on purpose says all there is to say, and the parent says it; the way to anything else is needed
        # to understand it.
        level = logging.DEBUG if _is_ours(error) else logging.ERROR
        names = {"model": spec.model_config.name, "reason": str(error)}
        log.log(level, "the engine cannot go on", exc_info=True, extra=names)
        link.send(Failed(message=_explain(error)))
        return EXIT_FAILED
    finally:
        pulse.stop()
        link.close()
        context.term()
    return 0


def _serve(handover: Handover, phases: dict[str, float], link: EngineLink, pulse: Pulse) -> None:
    service = _build(handover.spec, link)
    try:
        loop = EngineLoop(service, link, pulse)
        signal.signal(signal.SIGTERM, lambda _signal, _frame: loop.ask_to_drain())
        # Everything that exists by now lives as long as the process: take it out of every later collection.
        gc.freeze()
        gc.enable()
        total = time.monotonic() - handover.spawned_at
        start_s = {name: round(seconds, 4) for name, seconds in (phases | service.card.start_s).items()}
        start_s["total"] = round(total, 4)
        link.send(Ready(card=msgspec.structs.replace(service.card, start_s=start_s)))
        loop.run()
    finally:
        service.shutdown()


def _build(spec: ReplicaSpec, link: EngineLink) -> Service:
    module, _, function = spec.factory.partition(":")
    factory: ServiceFactory = getattr(importlib.import_module(module), function)
    return factory(spec, lambda stage, fraction: link.send(Progress(stage=stage, fraction=fraction)))


def _explain(error: Exception) -> str:
    """The error's own words where it has a typed class of ours, else with the class in front."""
    return str(error) if _is_ours(error) and str(error) else f"{type(error).__name__}: {error}"


def _is_ours(error: Exception) -> bool:
    return type(error).__module__.startswith("kvarn.")
