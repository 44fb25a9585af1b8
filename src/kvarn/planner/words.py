"""Numbers of a plan as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvarn.planner.answer import Plan
from kvarn.planner.quantity import Part, Quantity

_STEP_PARTS = ("activations", "logits", "graphs", "scratch")
_OTHER_PARTS = ("driver", "runtime", "states", "snapshots", "kv_cache", "unused")


def bytes_text(value: float) -> str:
    """Bytes in the unit that leaves up to three digits."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:,.3g} {unit}" if value < 100 * factor else f"{value / factor:,.0f} {unit}"
    return f"{value:,.0f} B"


def seconds_text(value: float) -> str:
    """Milliseconds below a second."""
    return f"{value:,.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def dollars_text(value: float) -> str:
    """Cents of an hour, a thousandth of a dollar below one."""
    return f"${value:,.2f}" if value >= 1 else f"${value:.3f}"


def count_text(value: float) -> str:
    """Millions and billions by their letters."""
    for letter, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if value >= factor:
            return f"{value / factor:,.3g} {letter}"
    return f"{value:,.0f}"


def quantity_text(quantity: Quantity) -> str:
    match quantity.unit:
        case "B":
            return bytes_text(quantity.value)
        case "s":
            return seconds_text(quantity.value)
        case "$/h":
            return f"{dollars_text(quantity.value)}/h"
        case "$/M":
            return f"{dollars_text(quantity.value)}/M"
        case "":
            return count_text(quantity.value)
        case "tokens" | "tokens/day":
            return f"{count_text(quantity.value)} {quantity.unit}"
        case unit:
            return f"{quantity.value:,.4g} {unit}" if quantity.value < 1000 else f"{quantity.value:,.0f} {unit}"


def part_text(name: str) -> str:
    return name.replace("_", " ").replace("kv ", "KV ")


def grouped_memory(memory: tuple[Part, ...]) -> tuple[Part, ...]:
    """Memory in the few parts that a line or a plot can tell apart."""
    sizes = {part.name: part.quantity.value for part in memory}
    step = sum(sizes.get(name, 0.0) for name in _STEP_PARTS)
    weights = sum(sizes.values()) - step - sum(sizes.get(name, 0.0) for name in _OTHER_PARTS)
    others = ((name, sizes[name]) for name in _OTHER_PARTS if name in sizes)
    parts = (("weights", weights), ("largest step", step), *others)
    return tuple(Part(name, Quantity(value=size, unit="B")) for name, size in parts if size)


def rate_text(rate_rps: float) -> str:
    return f"{rate_rps:,.7g} request{'' if rate_rps == 1 else 's'}/s"


def traffic_text(plan: Plan) -> str:
    request: Any = plan.request
    traffic: Mapping[str, Any] = request["traffic"]
    lengths = " + ".join(f"{_mean(traffic[name]):,.0f}" for name in ("input_tokens", "output_tokens"))
    cached = f", {traffic['cached_share']:.0%} of prompts repeated" if traffic["cached_share"] else ""
    return f"{rate_text(traffic['rate_rps'])} of {lengths} tokens{cached}"


def targets_text(plan: Plan) -> str:
    slo: Any = plan.request["slo"]
    name = f"p{100 * slo['percentile']:g}"
    return f"TTFT {name} within {seconds_text(slo['ttft_s'])}, TPOT {name} within {seconds_text(slo['tpot_s'])}"


def _mean(tokens: float | list[float]) -> float:
    """Mean of lengths; of quantiles the trapezoid between them."""
    if not isinstance(tokens, list):
        return tokens
    return (sum(tokens) - (tokens[0] + tokens[-1]) / 2) / (len(tokens) - 1)
