"""Engine process that waits to be activated: warm (libraries imported, weights mapped) or asleep."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvarn.replica.server.heartbeat import HeartbeatThread
from kvarn.replica.server.loop import ResponseRouter
from kvarn.replica.transport import Inbox
from kvarn.wire.messages import Stop
from kvarn.wire.supervision import Activate, Asleep, Drain, Supervise, Warm

_WAIT_S = 0.5

log = logging.getLogger(__name__)


@contextmanager
def mapped(directory: Path) -> Iterator[int]:
    """Map a checkpoint's weights and have the system read them ahead; yields their bytes."""
    maps = []
    try:
        for path in sorted(directory.glob("*.safetensors")):
            with path.open("rb") as file:
                found = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            found.madvise(mmap.MADV_WILLNEED)
            maps.append(found)
        yield sum(len(each) for each in maps)
    finally:
        for each in maps:
            each.close()


def wait_until_activated(
    waiting: Warm | Asleep, inbox: Inbox, router: ResponseRouter, heartbeat: HeartbeatThread
) -> bool:
    known = "asleep" if isinstance(waiting, Asleep) else "warm"
    router.supervisor.send(waiting)
    while True:
        for message in inbox.receive(_WAIT_S):
            match message:
                case Activate():
                    return True
                case Stop() | Drain():
                    return False
                case Supervise():
                    if heartbeat.heard(message.address):
                        router.supervised_by(message.address)
                    if message.knows != known:
                        router.supervisor.send(waiting)
