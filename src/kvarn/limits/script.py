"""The script in Redis: its text, what it is given and what it answers."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvarn.limits.counts import Timing
from kvarn.limits.orders import Order, Reading, Verdict

SCRIPT = Path(__file__).with_name("counts.lua").read_text(encoding="utf-8")


def script_input(
    operation: str, order: Order, timing: Timing, used: int = 0, *, whole: bool = False
) -> tuple[list[str], bytes]:
    """Keys and argument of the script; see there."""
    mark = f"kvarn:limits:{{{order.organization_id}}}:work:{order.work_id}"
    asked = [operation, timing.slot_ms, timing.window, timing.lease_ms, order.work_id, order.tokens, used, whole]
    for bound in order.bounds:
        asked += [str(bound.kind), bound.limit]
    return [mark, *[bound.key for bound in order.bounds]], msgspec.msgpack.encode(asked)


def read_verdict(order: Order, reply: bytes) -> Verdict:
    """What the script answered to an order."""
    admitted, *numbers = msgspec.msgpack.decode(reply)
    readings = tuple(Reading(*numbers[start : start + 3]) for start in range(0, len(numbers), 3))
    return Verdict(order, admitted, readings)
