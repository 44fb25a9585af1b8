"""The engine's heartbeat: a thread that says the process lives, even while its loop is in a long step."""

from __future__ import annotations

import threading
import time

import zmq

from kvarn.replica.link import OutLink
from kvarn.wire.messages import Heartbeat


class Pulse:
    """Sends `Heartbeat` every `interval_s` seconds from its own thread, over its own socket.

    The loop marks where it is by `step_began` and `step_ended`; each writes one attribute, which threads may read.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, interval_s: float) -> None:
        self._context = context
        self._address = address
        self._interval_s = interval_s
        self._step = 0
        self._began: float | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="kvarn-pulse", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Stop beating and close the socket."""
        self._stopped.set()
        self._thread.join()

    def step_began(self) -> None:
        """The loop enters a step."""
        self._began = time.monotonic()

    def step_ended(self) -> None:
        """The loop left a step."""
        self._step += 1
        self._began = None

    def _beat(self) -> None:
        link = OutLink(self._context, self._address)
        try:
            while not self._stopped.wait(self._interval_s):
                began = self._began
                busy_s = 0.0 if began is None else time.monotonic() - began
                link.send(Heartbeat(step=self._step, busy_s=busy_s))
        finally:
            link.close()
