"""Export of spans to a collector: in batches, beside the requests, never waited for."""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import httpx
from prometheus_client import CollectorRegistry, Counter

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.platform import TracesConfig
from kvarn.observe.bounded_queue import BoundedQueue
from kvarn.observe.traces.context import TraceContext
from kvarn.observe.traces.otlp import encode
from kvarn.observe.traces.settings import ExportSettings, export_settings
from kvarn.observe.traces.spans import request_spans
from kvarn.observe.traces.traced import TracedRequest

MAX_REQUESTS = 4096
"""Requests whose spans may wait for the collector; after that, the oldest are dropped."""
_BATCH = 64
_RETRIED = frozenset({429, 502, 503, 504})
_LONGEST_PAUSE_S = 30.0

Contents = Sequence[Callable[[], Mapping[str, str]]]
"""For each turn, what makes attributes of its prompt and its answers, in the exporter's thread."""

_log = logging.getLogger("kvarn.observe")


class _Waiting(NamedTuple):
    request: TracedRequest
    contents: Contents


class ExportMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.sent = Counter("kvarn_traces_exported_total", "Requests whose spans a collector took.", registry=registry)
        self.dropped = Counter(
            "kvarn_traces_dropped_total",
            "Requests whose spans were not exported: the collector was away or refused them.",
            registry=registry,
        )


def make_exporter(config: TracesConfig, registry: CollectorRegistry) -> SpanExporter | None:
    """The exporter that the configuration and the environment ask for; None: neither names a collector.

    Raises:
        ConfigError: A variable of OpenTelemetry's has no valid value.
    """
    settings, metrics = export_settings(config, os.environ, _log.warning), ExportMetrics(registry)
    return None if settings is None else SpanExporter(settings, metrics, vllm=config.vllm_attributes)


class SpanExporter:
    """Sends requests' spans to a collector. Belongs to one event loop.

    Args:
        settings: Where they go.
        metrics: Counts them.
        vllm: Turns have the attributes of vLLM's spans, too.
        clock: Seconds.
        transport: In place of the network.
    """

    def __init__(
        self,
        settings: ExportSettings,
        metrics: ExportMetrics,
        *,
        vllm: bool = False,
        clock: Callable[[], float] = SYSTEM_CLOCK.now,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._settings = settings
        self._vllm = vllm
        self._waiting = BoundedQueue[_Waiting](MAX_REQUESTS, metrics.dropped)
        self._clock = clock
        self._pause_s = self._not_before = 0.0
        self._http = settings.client(transport)
        self._sent, self._dropped = metrics.sent, metrics.dropped

    def wants(self, trace: TraceContext) -> bool:
        """Whether a request's spans are exported: it is sampled."""
        return self._settings.samples(trace)

    def add(self, request: TracedRequest, contents: Contents = ()) -> None:
        """Export a request's spans soon, with the contents of its turns where they are given."""
        self._waiting.add(_Waiting(request, contents))

    async def export(self) -> None:
        """Send what waits, until there is none or the collector does not take it now; a later call tries again."""
        while self._waiting and self._clock() >= self._not_before:
            batch = self._waiting.take(_BATCH)
            try:
                is_done = await asyncio.to_thread(self._send, batch)
            except asyncio.CancelledError:  # it may have been taken: a collector knows spans by their ids
                self._waiting.put_back(batch)
                raise
            except Exception:
                self._dropped.inc(len(batch))
                raise
            if not is_done:
                self._waiting.put_back(batch)

    async def close(self) -> None:
        """Send what waits, once, and close the connection."""
        self._not_before = 0.0
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.timeout_s):
                await self.export()
        if self._waiting:
            self._dropped.inc(len(self._waiting))
            _log.warning("spans were not exported: the collector is away", extra={"requests": len(self._waiting)})
        self._http.close()

    def _send(self, batch: Sequence[_Waiting]) -> bool:
        """Send a batch; whether it is done with. Runs in a thread."""
        spans = (
            (request, request_spans(request, vllm=self._vllm, contents=[make() for make in contents]))
            for request, contents in batch
        )
        body = gzip.compress(encode(spans, self._settings.resource), 1)
        try:
            answer = self._http.post(self._settings.url, content=body)
        except httpx.HTTPError as error:
            return self._failed(batch, f"{type(error).__name__}: {error}", None)
        if answer.status_code in _RETRIED:
            return self._failed(batch, f"status {answer.status_code}", answer.headers.get("retry-after"))
        self._pause_s = 0.0
        if answer.is_success:
            self._sent.inc(len(batch))
        else:
            self._dropped.inc(len(batch))
            _log.error("the collector refused spans: status %d: %s", answer.status_code, answer.text[:200])
        return True

    def _failed(self, batch: Sequence[_Waiting], why: str, retry_after: str | None) -> bool:
        if not self._pause_s:
            _log.warning("export of spans failed, retrying: %s", why, extra={"requests": len(batch)})
        wanted = float(retry_after) if retry_after and retry_after.isdecimal() else 2 * self._pause_s
        self._pause_s = min(max(wanted, 1.0), _LONGEST_PAUSE_S)
        self._not_before = self._clock() + self._pause_s
        return False
