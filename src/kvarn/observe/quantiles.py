"""Quantiles of histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence


def quantile(share: float, bounds: Sequence[float], cumulative: Sequence[float]) -> float:
    """A quantile by the algorithm of Prometheus' `histogram_quantile`, linear within a bucket; NaN where nothing was
    observed, or where it cannot be told: there is no bucket but the last.

    Args:
        share: From 0 to 1.
        bounds: Upper bounds of the buckets but the last, which has none.
        cumulative: Observations up to each bound, and all of them.
    """
    total = cumulative[-1]
    if total <= 0 or not bounds:
        return math.nan
    rank, lower, below = share * total, 0.0, 0.0
    for bound, count in zip(bounds, cumulative[:-1], strict=True):
        if count >= rank:
            return bound if bound <= 0 else lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return bounds[-1]
