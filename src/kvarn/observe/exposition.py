"""The page of metrics in the format that is asked for."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.exposition import ALLOWUTF8

from kvarn.observe.merge import as_open_metrics


def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The page and its media type: OpenMetrics where `Accept` asks for it, else Prometheus' text format."""
    encode, media_type = choose_encoder(accept)
    if isinstance(encode, partial):
        # Names need no escaping, and the other ways of it turn the colons of samples' names into underscores.
        encode = partial(encode, escaping=ALLOWUTF8)
    return encode(as_open_metrics(registry) if "openmetrics" in media_type else registry), media_type
