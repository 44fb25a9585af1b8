"""The script `counts.lua`, and how it is called."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from kvarn.limits.counts import KEEP_MS, Timing
from kvarn.limits.types import Kind, Update

SCRIPT = Path(__file__).with_name("counts.lua").read_text(encoding="utf-8")
DIGEST = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()


def script_input(operation: str, update: Update, timing: Timing) -> tuple[list[str], bytes]:
    """Keys and argument of `counts.lua`; see there."""
    reservation = update.reservation
    keys = [f"kvarn:limits:{{{reservation.organization_id}}}:work:{reservation.work_id}"]
    times = timing.slot_ms, timing.window, timing.lease_ms, KEEP_MS
    argument: list[Any] = [operation, *times, reservation.work_id, reservation.tokens, update.used, update.whole]
    for limit in reservation.limits:
        numbers = [limit.kind.value, limit.maximum, reservation.amount(limit)]
        if (spending := limit.spending) is not None:
            keys += [limit.key, f"{limit.key}:leases", f"{limit.key}:{spending.period}"]
            numbers += [spending.spent, spending.gateway, spending.unread]
        elif limit.kind is Kind.CONCURRENCY:
            keys += [f"{limit.key}:held", f"{limit.key}:leases"]
        else:
            keys.append(limit.key)
        argument.append(numbers)
    return keys, msgspec.msgpack.encode(argument)
