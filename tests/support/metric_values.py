"""What a metric shows."""

from __future__ import annotations

from typing import Any


def metric_value(metric: Any) -> float:
    """The value of a counter or gauge, or of one with its labels."""
    (family,) = metric.collect()
    (value,) = [sample.value for sample in family.samples if not sample.name.endswith("_created")]
    return float(value)
