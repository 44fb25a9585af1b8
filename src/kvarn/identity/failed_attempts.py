"""A bound on failed guesses at keys that people choose (those of the configuration)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from ipaddress import ip_address, ip_network

from kvarn.clock import SYSTEM_CLOCK
from kvarn.wire.openai.errors import ApiError

_WINDOW_S = 60.0
_MAX_FAILURES = 20
_MAX_ADDRESSES = 4096


class FailedAttempts:
    """Failed guesses in this process by client address (a network of IPv6: its owner has many addresses), in windows
    of a minute. Behind a proxy all clients are one."""

    def __init__(self, clock: Callable[[], float] = SYSTEM_CLOCK.now) -> None:
        self._clock = clock
        self._failures = OrderedDict[str, tuple[float, int]]()
        """Start of the window, and failures in it."""

    def check(self, address: str) -> None:
        """Raises `ApiError` 429 where too many attempts have failed: no further one is looked at."""
        since, count = self._failures.get(_holder(address), (0.0, 0))
        left_s = since + _WINDOW_S - self._clock()
        if count >= _MAX_FAILURES and left_s > 0:
            why = f"Too many failed sign-ins from your address: try again in {left_s:.0f} s."
            raise ApiError(
                429, why, type="rate_limit_error", code="too_many_sign_ins", headers={"retry-after": f"{left_s:.0f}"}
            )

    def note(self, address: str) -> None:
        holder, now = _holder(address), self._clock()
        since, count = self._failures.pop(holder, (now, 0))
        if now - since >= _WINDOW_S:
            since, count = now, 0
        self._failures[holder] = since, count + 1
        if len(self._failures) > _MAX_ADDRESSES:
            self._failures.popitem(last=False)


def _holder(address: str) -> str:
    try:
        parsed = ip_address(address)
    except ValueError:
        return address[:64]
    return address if parsed.version == 4 else str(ip_network((parsed, 64), strict=False))
