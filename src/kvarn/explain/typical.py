"""A typical request of a shape, and two requests side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import msgspec

from kvarn.explain.explanation import Difference, Part


class Typical(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over requests of one shape."""

    requests: int
    total_s: float
    parts: dict[str, float]
    """Seconds by the name of a part."""


def shape_of(prompt_tokens: int, cached_tokens: int, output_tokens: int) -> tuple[int, int]:
    """Shape of a request: tokens of its prompt that were computed, and of its answer, each to the power of two that it
    does not exceed. Requests of a shape can be compared."""
    return max(0, prompt_tokens - cached_tokens).bit_length(), output_tokens.bit_length()


def seconds_by_part(parts: Iterable[Part]) -> dict[str, float]:
    """Seconds of each part by its name; those of one name are added."""
    found: dict[str, float] = {}
    for part in parts:
        found[part.name] = found.get(part.name, 0.0) + part.end_s - part.begin_s
    return found


def typical_of(requests: Sequence[Mapping[str, float]]) -> Typical | None:
    """The typical one of requests, each its seconds by part (`seconds_by_part`); None where there are none. A part
    that a request has not took no time."""
    if not requests:
        return None
    names = dict.fromkeys(name for request in requests for name in request)
    parts = {name: median(request.get(name, 0.0) for request in requests) for name in names}
    total_s = median(sum(request.values()) for request in requests)
    return Typical(requests=len(requests), total_s=total_s, parts=parts)


def compare(one: Mapping[str, float], other: Mapping[str, float]) -> list[Difference]:
    """Two requests part by part, each its seconds by part; the parts in which they differ most first."""
    found = [
        Difference(name=name, seconds=one.get(name, 0.0), other_s=other.get(name, 0.0))
        for name in dict.fromkeys([*one, *other])
    ]
    return sorted(found, key=lambda each: -abs(each.seconds - each.other_s))
