"""The gateway's metrics, in a registry of their own. `docs/reference/metrics.md` explains each to an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.platform import SloConfig
from kvarn.observe.latency import GenerationTimer, SlidingRatio
from kvarn.observe.merge import MetricFamily, read_families
from kvarn.observe.turns import TurnMetrics

UNKNOWN = "unknown"
"""Label for a model or endpoint that is not configured: what clients invent never becomes a label."""

TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30, 60, 300)
TPOT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)
_REQUEST_BUCKETS = (0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class GenerationObserver:
    """Observes one generation request: `delta` for each delta, then `finished` or `failed`; neither when the client
    left."""

    __slots__ = ("_exemplar", "_itl", "_model", "timer")

    def __init__(self, model: _ModelMetrics, started: float, exemplar: dict[str, str] | None) -> None:
        self._model = model
        self._exemplar = exemplar
        self._itl = model.itl
        self.timer = GenerationTimer(model.clock, started)

    def delta(self, index: int, tokens: int) -> None:
        had_first = self.timer.ttft is not None
        gap = self.timer.mark(index, tokens)
        if gap is not None:
            self._itl.observe(gap)
        elif not had_first and self.timer.ttft is not None:
            self._model.ttft.observe(self.timer.ttft, self._exemplar)

    def moved(self, pause_s: float) -> None:
        """Another engine process went on with it; no token came for so long."""
        self._model.failovers.observe(pause_s)

    def finished(self) -> None:
        """Every choice ended; counts towards goodput."""
        for tpot in self.timer.tpots():
            self._model.tpot.observe(tpot, self._exemplar)
        self._model.count_slo(self.timer.meets(self._model.slo))

    def failed(self) -> None:
        """The platform refused or lost the request: a miss, however fast it was."""
        self._model.count_slo(False)


class _ModelMetrics:
    def __init__(self, metrics: GatewayMetrics, model: str, slo: SloConfig) -> None:
        self.clock = metrics.clock
        self.slo = slo
        self.ttft = metrics.ttft.labels(model)
        self.tpot = metrics.tpot.labels(model)
        self.itl = metrics.itl.labels(model)
        self.failovers = metrics.failovers.labels(model)
        metrics.ttft_target.labels(model).set(slo.ttft_target_s)
        metrics.tpot_target.labels(model).set(slo.tpot_target_s)
        self._met = metrics.slo_requests.labels(model, "met")
        self._missed = metrics.slo_requests.labels(model, "missed")
        self._recent = SlidingRatio(metrics.clock)
        metrics.goodput.labels(model).set_function(self._recent.value)

    @property
    def recent_requests(self) -> int:
        return self._recent.events()

    def count_slo(self, met: bool) -> None:
        (self._met if met else self._missed).inc()
        self._recent.add(met)


class GatewayMetrics:
    """All metrics of one gateway process. `slo`: the latency targets that goodput counts against, by model."""

    def __init__(
        self,
        models: Iterable[str],
        slo: Mapping[str, SloConfig] | None = None,
        clock: Callable[[], float] = SYSTEM_CLOCK.now,
    ) -> None:
        self.clock = clock
        self.registry = CollectorRegistry()
        self._define(self.registry)
        self._models: dict[str, _ModelMetrics] = {}
        for model in models:
            self.add_model(model, (slo or {}).get(model, SloConfig()))
        self.turns = TurnMetrics(self.registry)
        self.history_sources: list[Collector] = [
            *(self.requests, self.ttft, self.tpot, self.slo_requests, self.process_restarts)
        ]
        """Metrics that the history is made of (`kvarn.observe.history`)."""
        ProcessCollector(registry=self.registry)

    def _define(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        by_model = ("model",)
        self.processes = gauge("kvarn_gateway_processes", "Gateway processes that serve.")
        self.processes.set(1)
        self.process_restarts = counter(
            "kvarn_gateway_process_restarts_total", "Gateway processes started in the place of one that ended."
        )
        self.requests = counter("kvarn_requests_total", "HTTP requests answered.", ("model", "endpoint", "status"))
        self.in_flight = gauge("kvarn_requests_in_flight", "HTTP requests being answered.")
        self.request_seconds = histogram(
            "kvarn_request_seconds",
            "From a request's headers to the last byte of its answer.",
            ("model", "endpoint"),
            buckets=_REQUEST_BUCKETS,
        )
        self.batch_lines = counter(
            "kvarn_batch_lines_total",
            "Lines of batches: completed, failed, or refused and to be tried again.",
            ("outcome",),
        )
        self.structured_answers = counter(
            "kvarn_structured_answers_total",
            "Finished answers by the check against their JSON schema: valid, invalid (a fault: it stays 0), unchecked.",
            ("model", "outcome"),
        )
        self.feedback = counter(
            "kvarn_feedback_total", "Feedback on answers: up, down, or none of both.", ("model", "rating")
        )
        graded = ("model", "version", "set")
        self.quality_score = gauge("kvarn_quality_score", "Score of the newest run of an evaluation set.", graded)
        self.quality_baseline_score = gauge(
            "kvarn_quality_baseline_score", "Score of the run that the newest one is measured by.", graded
        )
        self.disconnects = counter(
            "kvarn_disconnects_total", "Clients that left before the end of their answer.", ("model", "endpoint")
        )
        self.ttft = histogram("kvarn_ttft_seconds", "Time to first token.", by_model, buckets=TTFT_BUCKETS)
        self.tpot = histogram(
            "kvarn_tpot_seconds",
            "Time per output token: mean gap after the first token of a choice.",
            by_model,
            buckets=TPOT_BUCKETS,
        )
        self.itl = histogram(
            "kvarn_itl_seconds", "Single gaps between deltas of a choice.", by_model, buckets=TPOT_BUCKETS
        )
        self.failovers = histogram(
            "kvarn_failover_seconds",
            "From the loss of a request's engine to the next token, from another one.",
            by_model,
            buckets=TTFT_BUCKETS,
        )
        self.slo_requests = counter(
            "kvarn_slo_requests_total",
            "Generation requests that met, or missed, the TTFT and TPOT targets.",
            ("model", "outcome"),
        )
        self.ttft_target = gauge("kvarn_slo_ttft_target_seconds", "Target for the time to first token.", by_model)
        self.tpot_target = gauge("kvarn_slo_tpot_target_seconds", "Target for the time per output token.", by_model)
        self.goodput = gauge(
            "kvarn_goodput_ratio",
            "Share of the generation requests of the last 5 minutes that met the TTFT and TPOT targets.",
            by_model,
        )

    def add_model(self, model: str, slo: SloConfig) -> None:
        if model not in self._models:
            self._models[model] = _ModelMetrics(self, model, slo)

    def generation(self, model: str, started: float, exemplar: dict[str, str] | None = None) -> GenerationObserver:
        """Observe a request to a model. `exemplar`: names its trace, beside the buckets that its times fall into."""
        return GenerationObserver(self._models[model], started, exemplar)

    def slo_missed(self, model: str) -> None:
        """A generation request for a configured model was refused before it began: a miss."""
        self._models[model].count_slo(False)

    @property
    def requests_in_flight(self) -> int:
        (family,) = self.in_flight.collect()
        return int(family.samples[0].value)

    async def counted(self) -> list[MetricFamily]:
        """The families that the history is made of, where this is the server's only process."""
        return read_families(_Sources(self.history_sources))

    def snapshot(self) -> list[MetricFamily]:
        weights = {("kvarn_goodput_ratio", name): float(model.recent_requests) for name, model in self._models.items()}
        return read_families(self.registry, weights)


class _Sources(Collector):
    def __init__(self, sources: Iterable[Collector]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        for source in self._sources:
            yield from source.collect()
