"""Time kept for requests that were refused with a Retry-After.

A Retry-After is worth nothing if those who come meanwhile take the place. So each refused request gets a slot in the
first second that has time for it, and is taken if the same request comes again from then on; newcomers count it as if
it stood before them. Not all come back: only the part that did lately is held, and where few do, more get the same
second.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

from kvarn.admission.demand import Key

LONGEST_RETRY_S = 600
"""No Retry-After is longer."""
FILL = 0.75
"""Part of the engine's time in one second that is given to retries."""
GRACE_S = 3
"""A slot is good for so many seconds after its own."""
EARLY_S = 0.1
"""Clocks differ by so much."""
FADE = 0.05
"""Weight of the latest slot in the share of those that are used."""
LEAST_USED = 0.1


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
    charged_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """To each tenant."""


class RetrySlots:
    """The slots of one model. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._seconds = defaultdict[int, _Second](_Second)
        self._full: dict[str, tuple[int, int]] = {}
        """By tenant: the wait below which no second had time for it, and the second in which that was found."""
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
        time_s = FILL / max(LEAST_USED, self._used)
        open_s, found = self._full.get(key[0], (1, 0))
        if found != math.floor(now):
            open_s = 1
        first_s = max(open_s, math.ceil(earliest_s))
        for wait_s in range(first_s, LONGEST_RETRY_S):
            second = self._seconds[math.floor(now + wait_s)]
            mine_s = second.charged_s[key[0]]
            if not mine_s or (second.service_s < time_s and mine_s + charged_s <= share * time_s):
                break
        else:
            return LONGEST_RETRY_S
        if first_s == open_s:
            self._full[key[0]] = (wait_s, math.floor(now))
        slot = _Slot(key, now + wait_s, service_s)
        second.slots.append(slot)
        second.service_s += service_s
        second.charged_s[key[0]] += charged_s
        self._by_key.setdefault(key, []).append(slot)
        return wait_s

    def use(self, key: Key, now: float) -> bool:
        """Whether a request comes again in time for its slot; the slot is gone then."""
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
            for slot in self._seconds[number].slots if number in self._seconds else ():
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
            self._full = {}
        for number in sorted(number for number in self._seconds if number < first):
            for slot in self._seconds.pop(number).slots:
                self._used += FADE * (slot.used - self._used)
                if not slot.used:
                    self._remove(slot)

    def _remove(self, slot: _Slot) -> None:
        slots = self._by_key[slot.key]
        slots.remove(slot)
        if not slots:
            del self._by_key[slot.key]
