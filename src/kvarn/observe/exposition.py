"""The page of metrics in the format that is asked for."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from functools import partial

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.exposition import ALLOWUTF8

from kvarn.observe.merge import MetricFamily, as_open_metrics, as_registry
from kvarn.observe.vllm_names import vllm_families


def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The page and its media type: OpenMetrics where `Accept` asks for it, else Prometheus' text format."""
    encode, media_type = choose_encoder(accept)
    if isinstance(encode, partial):
        # Names need no escaping, and the other ways of it turn the colons of samples' names into underscores.
        encode = partial(encode, escaping=ALLOWUTF8)
    return encode(as_open_metrics(registry) if "openmetrics" in media_type else registry), media_type


def page(families: Sequence[MetricFamily], accept: str, *, vllm_names: bool, is_packed: bool) -> tuple[bytes, str]:
    """The body and its media type. `vllm_names`: the metrics stand on it under vLLM's names, too; `is_packed`: it is
    compressed."""
    added = vllm_families(families) if vllm_names else []
    body, media_type = exposition(as_registry([*families, *added]), accept)
    return (gzip.compress(body, compresslevel=1) if is_packed else body), media_type
