"""Room kept for requests that were refused and told when to come back.

A Retry-After is worth nothing if those who come meanwhile take the place. So each refused request gets a slot in the
first second that has room for it, and is taken if the same request (same tenant, same body) comes again from then on;
newcomers count it as if it stood before them. Not all come back: only the part that did lately is held, and where few
do, more are told the same second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

LONGEST_RETRY_S = 600
"""Nobody is told to wait longer."""
FILL = 0.75
"""Part of the engine's time in one second that is given to retries."""
GRACE_S = 3
"""A slot is good for so many seconds after its own."""
EARLY_S = 0.1
"""Clocks differ by so much."""
FADE = 0.05
"""Weight of the latest slot in the share of those that are used."""
LEAST_USED = 0.1

Key = tuple[str, int]
"""Tenant and hash of the body."""


@dataclass(slots=True, eq=False)
class _Slot:
    key: Key
    due: float
    service_s: float
    used: bool = False


@dataclass(slots=True)
class _Second:
    """The slots of one second, and what they come to."""

    slots: list[_Slot] = field(default_factory=list)
    service_s: float = 0.0
    charged_s: dict[str, float] = field(default_factory=dict)
    """To each tenant."""


class RetrySlots:
    """The slots of one model. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._seconds: dict[int, _Second] = {}
        """In order of time from `_oldest` on, except that empty ones may be missing."""
        self._oldest = 0
        self._full: dict[str, tuple[int, int]] = {}
        """By tenant: the second before which all were full for it, and when that was found."""
        self._by_key: dict[Key, list[_Slot]] = {}
        self._used = 1.0
        """Share of the slots that were used, lately."""

    def give(self, key: Key, service_s: float, charged_s: float, share: float, earliest_s: float, now: float) -> int:
        """Find a slot for a refused request.

        Args:
            key: Which request it is.
            service_s: What it will take of the engine's time.
            charged_s: The same, as its tenant is charged: by tokens.
            share: Of each second, its tenant's part.
            earliest_s: It has to wait for so long in any case.
            now: The time.

        Returns:
            Whole seconds after which it shall come again.
        """
        self._expire(now)
        room_s = FILL / max(LEAST_USED, self._used)
        this_second = math.floor(now)
        full, found = self._full.get(key[0], (0, 0))
        open_in_s = full - this_second if found == this_second else 1
        first = max(open_in_s, math.ceil(earliest_s))
        for wait_s in range(first, LONGEST_RETRY_S):
            second = self._seconds.setdefault(math.floor(now + wait_s), _Second())
            mine_s = second.charged_s.get(key[0], 0.0)
            if not mine_s or (second.service_s < room_s and mine_s + charged_s <= share * room_s):
                break
        else:
            return LONGEST_RETRY_S
        if first == open_in_s:
            self._full[key[0]] = (this_second + wait_s, this_second)
        slot = _Slot(key, now + wait_s, service_s)
        second.slots.append(slot)
        second.service_s += service_s
        second.charged_s[key[0]] = mine_s + charged_s
        self._by_key.setdefault(key, []).append(slot)
        return wait_s

    def use(self, key: Key, now: float) -> bool:
        """Whether a request comes when it was told to; its slot is gone then."""
        self._expire(now)
        for slot in self._by_key.get(key, ()):
            if slot.due - EARLY_S <= now:
                slot.used = True
                self._remove(slot)
                return True
        return False

    def held_s(self, tenant: str, share: float, now: float, until: float, *, own: bool = True) -> float:
        """Engine time that those who will probably come back by `until` take before a newcomer of this tenant; of other
        tenants no more than their share of the time. `own`: its own tenant's count as well."""
        mine_s = others_s = 0.0
        for number in range(math.floor(now), math.floor(until) + 1):
            second = self._seconds.get(number)
            for slot in second.slots if second is not None else ():
                if slot.used or not now - EARLY_S <= slot.due <= until:
                    continue
                if slot.key[0] == tenant:
                    mine_s += slot.service_s
                else:
                    others_s += slot.service_s
        return self._used * (own * mine_s + min(others_s, (1 - share) * (until - now)))

    def _expire(self, now: float) -> None:
        """Forget the seconds that are over."""
        first = math.floor(now) - GRACE_S
        if not self._seconds:
            self._oldest, self._full = first, {}
        while self._seconds and self._oldest < first:
            over = self._seconds.pop(self._oldest, None)
            self._oldest += 1
            for slot in over.slots if over is not None else ():
                self._used += FADE * (slot.used - self._used)
                if not slot.used:
                    self._remove(slot)

    def _remove(self, slot: _Slot) -> None:
        slots = self._by_key[slot.key]
        slots.remove(slot)
        if not slots:
            del self._by_key[slot.key]
