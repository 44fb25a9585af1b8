"""Metrics of the work that arrives, before anything is decided about it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

REQUESTS = "kvarn_arrived_requests"
PROMPT_TOKENS = "kvarn_arrived_prompt_tokens"
OUTPUT_TOKENS = "kvarn_arrived_output_tokens"
HELD = "kvarn_held_requests"


class ArrivalMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.requests = Counter(
            REQUESTS, "Requests to models that arrived, refused ones too.", ("model",), registry=registry
        )
        self.prompt_tokens = Counter(PROMPT_TOKENS, "Prompt tokens of those.", ("model",), registry=registry)
        self.output_tokens = Counter(
            OUTPUT_TOKENS,
            "Output tokens expected of those, as answers usually turn out.",
            ("model",),
            registry=registry,
        )
        self.held = Gauge(
            HELD, "Requests that wait for the first replica of their model.", ("model",), registry=registry
        )
        self.needed = Gauge(
            "kvarn_replicas_needed", "Replicas that the arriving work needs.", ("model",), registry=registry
        )

    def set_needed(self, model: str, replicas: float | None) -> None:
        """None: nothing counts them here, be it that the number is set by hand or that another server leads."""
        if replicas is None:
            self.needed.remove(model)
        else:
            self.needed.labels(model).set(replicas)
