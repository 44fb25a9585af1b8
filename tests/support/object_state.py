"""All that can be reached from an object, as plain values: two objects are alike if these are equal."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

_PLAIN = (int, float, str, bytes, bool, type(None), Enum)


def state_of(thing: object, *, without: tuple[type, ...] = ()) -> list[Any]:
    """The state, floats to the last bit and dicts in their order, of sets of objects only the size. Functions, locks
    and objects of the types `without` are left out; what is met again is told by its number."""
    seen: dict[int, int] = {}
    kept: list[object] = []  # keeps ids unique
    told: list[Any] = []
    stack = [thing]
    while stack:
        each = stack.pop()
        if isinstance(each, _PLAIN):
            told.append(repr(each))
            continue
        if isinstance(each, tuple):
            told.append(("tuple", len(each)))
            stack.extend(reversed(each))
            continue
        if id(each) in seen:
            told.append(("again", seen[id(each)]))
            continue
        seen[id(each)] = len(seen)
        kept.append(each)
        if callable(each) or isinstance(each, without) or type(each).__module__ in ("_thread", "builtins._io"):
            told.append(type(each).__name__)
            continue
        parts = _parts(each)
        told.append((type(each).__name__, len(parts)))
        stack.extend(reversed(parts))
    return told


def _parts(thing: object) -> list[object]:
    if isinstance(thing, Mapping):
        return [part for pair in thing.items() for part in pair]
    if isinstance(thing, list | deque):
        return list(thing)
    if isinstance(thing, array):
        return [thing.tobytes()]
    if isinstance(thing, set | frozenset):
        return sorted(thing) if all(isinstance(each, _PLAIN) for each in thing) else [len(thing)]
    if isinstance(thing, msgspec.Struct):
        names = list(thing.__struct_fields__)
    else:
        slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        names = [*slots, *getattr(thing, "__dict__", {})]
    return [part for name in names if hasattr(thing, name) for part in (name, getattr(thing, name))]
