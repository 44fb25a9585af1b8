"""Messages to the service manager that started this process, by systemd's protocol (sd_notify(3)).

A manager that wants them says where in `NOTIFY_SOCKET`; without that nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket

_log = logging.getLogger(__name__)


def notify(*messages: str) -> None:
    """Send messages such as `READY=1`. A manager that cannot be reached is logged: it may end the server."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.connect(f"\0{address[1:]}" if address.startswith("@") else address)  # @: Linux' abstract names
            sender.send("\n".join(messages).encode())
    except OSError as error:
        _log.warning("the service manager cannot be told %s: %s", messages[0], error)


async def send_heartbeats() -> None:
    """Tell the manager that the event loop turns, twice in the time after which it would restart the server
    (`WATCHDOG_USEC`); return at once where it does not ask. Engines are watched by the server itself."""
    limit_us = os.environ.get("WATCHDOG_USEC", "")
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()) or not limit_us.isdigit():
        return
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(int(limit_us) / 2e6)
