"""The engine's heartbeat: a thread that says the process lives, even while its loop is in a long step."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from kvarn.replica.server.transport import SUPERVISOR_LINGER_MS, Outbox
from kvarn.wire.messages import Heartbeat


class HeartbeatThread(threading.Thread):
    """Sends `Heartbeat` to the supervisor every `interval_s` seconds, over a socket of its own."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, interval_s: float) -> None:
        super().__init__(name="kvarn-heartbeat", daemon=True)
        self._context = context
        self._address = address
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._step = 0
        self._step_began: float | None = None

    def stop(self) -> None:
        """Send no more and close the socket."""
        self._stopped.set()
        self.join()

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Around each step of the loop. It writes attributes that threads may read."""
        self._step_began = time.monotonic()
        try:
            yield
        finally:
            self._step += 1
            self._step_began = None

    def run(self) -> None:
        """The thread."""
        outbox = Outbox(self._context, self._address, SUPERVISOR_LINGER_MS)
        while not self._stopped.wait(self._interval_s):
            began = self._step_began
            busy_s = 0.0 if began is None else time.monotonic() - began
            outbox.send(Heartbeat(step=self._step, busy_s=busy_s))
        outbox.close()
