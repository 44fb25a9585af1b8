"""Rendezvous hashing with bounded load: the same key goes to the same place, unless that has too much.

Where nothing is known of what a replica has cached, prompts that begin alike go to the same one. When a replica comes
or goes, only its own keys move (Thaler and Ravishankar 1998). The bound on load is that of Mirrokni, Thorup and
Zadimoghaddam (2018): nobody takes more than `balance` times the mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from xxhash import xxh3_64_intdigest


def rank(key: bytes, names: Iterable[str]) -> list[str]:
    """The names in the key's own order of preference."""
    return sorted(names, key=lambda name: (-xxh3_64_intdigest(name.encode() + b"\0" + key), name))


def order_by_rank(key: bytes, loads: Mapping[str, int], balance: float = 1.25) -> list[str]:
    """The names to try, in this order: by rank, those that have their part of the load already last. `balance`: what
    each may have after this one, relative to the mean; > 1."""
    if not loads:
        return []
    bound = math.ceil(balance * (sum(loads.values()) + 1) / len(loads))
    ranked = rank(key, loads)
    return [name for name in ranked if loads[name] < bound] + [name for name in ranked if loads[name] >= bound]
