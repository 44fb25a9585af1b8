"""The engine's heartbeat: its process lives, its loop moves, its supervisor still speaks to it."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kvarn.clock import SYSTEM_CLOCK
from kvarn.replica.session_work import session_work
from kvarn.replica.transport import SUPERVISOR_LINGER_MS, Context, Outbox, OutboxKeys
from kvarn.wire.supervision import Heartbeat

log = logging.getLogger(__name__)


class HeartbeatThread(threading.Thread):
    """Sends `Heartbeat` to the supervisor at `address` every `interval_s` seconds, over a socket of its own. After
    `orphan_timeout_s` seconds (0: never) without a word of the supervisor the process is told to drain."""

    def __init__(
        self,
        context: Context,
        address: str,
        interval_s: float,
        keys: OutboxKeys | None = None,
        orphan_timeout_s: float = 0.0,
    ) -> None:
        super().__init__(name="kvarn-heartbeat", daemon=True)
        self._context = context
        self._address = address
        self._interval_s = interval_s
        self._keys = keys
        self._orphan_timeout_s = orphan_timeout_s
        self.draining = False
        """Whether heartbeats say that the engine drains."""
        self._loading = False
        self._stopped = threading.Event()
        self._heard_at = SYSTEM_CLOCK.now()
        self._step = 0
        self._step_began: float | None = None

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def heard(self, address: str) -> bool:
        """The supervisor has sent word; returns whether it is another one than before."""
        self._heard_at = SYSTEM_CLOCK.now()
        is_new, self._address = address != self._address, address
        return is_new

    @contextmanager
    def loading(self) -> Iterator[None]:
        """No message is read while the model is loaded: the supervisor's silence does not count."""
        self._loading = True
        try:
            yield
        finally:
            self._heard_at = SYSTEM_CLOCK.now()
            self._loading = False

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Around each step of the loop. It writes attributes that threads may read."""
        self._step_began = SYSTEM_CLOCK.now()
        try:
            yield
        finally:
            self._step += 1
            self._step_began = None

    def run(self) -> None:
        address = self._address
        outbox = Outbox(self._context, address, SUPERVISOR_LINGER_MS, self._keys)
        while not self._stopped.wait(self._interval_s):
            if address != self._address:
                outbox.close(drop=True)
                address = self._address
                outbox = Outbox(self._context, address, SUPERVISOR_LINGER_MS, self._keys)
            began, now = self._step_began, SYSTEM_CLOCK.now()
            busy_s = 0.0 if began is None else now - began
            may_hear = self._orphan_timeout_s > 0 and not self._loading
            unheard_s = max(0.0, now - busy_s - self._heard_at) if may_hear else 0.0
            work = session_work(os.getsid(0)).amount if self._loading else 0.0
            outbox.send(
                Heartbeat(step=self._step, busy_s=busy_s, unheard_s=unheard_s, work=work, draining=self.draining)
            )
            if self._orphan_timeout_s and unheard_s > self._orphan_timeout_s:
                log.error("the engine ends: its supervisor has been silent for %.0f s", unheard_s)
                os.kill(os.getpid(), signal.SIGTERM)
                break
        outbox.close()
