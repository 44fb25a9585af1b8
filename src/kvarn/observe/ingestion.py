"""Metrics of the ingestion of files into vector stores. `docs/reference/metrics.md` explains each."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


class IngestionMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.files = Counter(
            "kvarn_ingested_files_total",
            "Files of vector stores whose ingestion ended here, by how.",
            ("outcome",),
            registry=registry,
        )
        self.bytes = Counter(
            "kvarn_ingested_bytes_total", "Bytes of the files that were read for vector stores.", registry=registry
        )
        self.seconds = Histogram(
            "kvarn_ingestion_seconds", "Time that ingestions took which succeeded.", buckets=_SECONDS, registry=registry
        )
