"""The connection to one engine process, made again where it breaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import zmq

from kvarn.replica.endpoint import Endpoint
from kvarn.replica.transport import ClientTransport
from kvarn.wire.messages import FromEngine, ToEngine

_RECONNECT_S = 0.5
"""After so long an engine is joined again to which the connection was lost."""

log = logging.getLogger(__name__)


class EngineConnection:
    """Is open until it is closed, with gaps where it was lost.

    Args:
        endpoint: The engine's.
        own: ZMQ address that this process binds.
        on_open: Given the address at which the engine finds this process, to join it, now and after each loss.
        on_message: Given what the engine sends.
        on_changed: Given why the connection is lost, and None when the engine has answered on another.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        own: str,
        on_open: Callable[[str], None],
        on_message: Callable[[FromEngine], None],
        on_changed: Callable[[Exception | None], None],
    ) -> None:
        self.endpoint = endpoint
        self.is_lost = False
        """It was lost, and the engine has not answered on another: only then both ways are there."""
        self._own = own
        self._on_open = on_open
        self._on_message = on_message
        self._on_changed = on_changed
        self._transport: ClientTransport | None = None
        self._retry: asyncio.TimerHandle | None = None

    @property
    def takes_requests(self) -> bool:
        return self._transport is not None and not self.is_lost

    def open(self) -> None:
        """Connect. Where this process cannot, it is as if the connection were lost: it is tried again."""
        try:
            self._transport = ClientTransport(self.endpoint, self._own, self._handle, self._lost)
        except (OSError, zmq.ZMQError) as error:
            log.debug("no connection to an engine can be opened: %s", error)
            self._lost(ConnectionError(f"this process cannot listen at {self._own}: {error}"))
            return
        self._on_open(self._transport.address)

    def send(self, message: ToEngine) -> bool:
        if self._transport is not None:
            self._transport.send(message)
        return self._transport is not None

    def close(self) -> None:
        """Hand over what the engine has still said, and leave it."""
        if self._retry is not None:
            self._retry.cancel()
        transport, self._transport = self._transport, None
        if transport is not None:
            try:
                transport.read_rest()
            finally:
                transport.close()

    def _lost(self, error: Exception) -> None:
        """Messages may be missing: the engine is joined again, unless this is closed meanwhile."""
        self.close()
        is_known, self.is_lost = self.is_lost, True
        self._retry = asyncio.get_running_loop().call_later(_RECONNECT_S, self.open)
        if not is_known:
            self._on_changed(error)

    def _handle(self, message: FromEngine) -> None:
        if self.is_lost and self._transport is not None:
            self.is_lost = False
            self._on_changed(None)
        self._on_message(message)
