"""Processor time of the gateway, which the requests under way share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kvarn.simulator.request import SimulatedRequest
from kvarn.simulator.world import World


class GatewayProcesses:
    """Processes whose event loops work on all of their requests in turns: requests that come together are ready
    together, and later than one that comes alone.

    Every request needs the same work, so the first to come is the first to be ready.
    """

    def __init__(self, world: World, count: int, work_s: float, on_read: Callable[[SimulatedRequest], None]) -> None:
        """`count`: processes; `work_s`: of one for each request; `on_read`: gets each request when it is ready."""
        self._world = world
        self._count = count
        self._work_s = work_s
        self._on_read = on_read
        # Each with the value of _done_s at which it is ready.
        self._requests: deque[tuple[float, SimulatedRequest]] = deque()
        self._done_s = 0.0  # work on a request that has been here all the time
        self._looked_s = 0.0
        self._ticket = 0  # what was asked for with an earlier one is not wanted any more

    def take(self, request: SimulatedRequest) -> None:
        """A request has come."""
        self._work()
        self._requests.append((self._done_s + self._work_s, request))
        self._plan()

    @property
    def _rate(self) -> float:
        """Seconds of work on each request in a second."""
        return min(1.0, self._count / len(self._requests))

    def _work(self) -> None:
        now = self._world.now
        if self._requests:
            self._done_s += (now - self._looked_s) * self._rate
        self._looked_s = now

    def _plan(self) -> None:
        self._ticket += 1
        if self._requests:
            left_s = max(0.0, self._requests[0][0] - self._done_s)
            self._world.after(left_s / self._rate, self._read, self._ticket)

    def _read(self, ticket: int) -> None:
        if ticket != self._ticket:
            return
        self._work()
        ready_s = self._done_s = max(self._done_s, self._requests[0][0])
        while self._requests and self._requests[0][0] <= ready_s:
            self._on_read(self._requests.popleft()[1])
        self._plan()
