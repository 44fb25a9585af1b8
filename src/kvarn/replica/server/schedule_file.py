"""The file in which an engine keeps the record of its schedule: MessagePack events, each after its length.

Each is written at once: an engine that is killed loses the one that it was about to write.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from kvarn.engine.core import EngineParts
from kvarn.engine.schedule_record import Event, RecordingCore

LENGTH_BYTES = 4


def recording_core(folder: Path, replica: str, parts: EngineParts, clock: Callable[[], float]) -> RecordingCore:
    """An engine that writes its schedule into a file of this process. Raises OSError where it cannot be made."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.-]", "_", replica) or "engine"
    file = (folder / f"{name}-{os.getpid()}.schedule").open("wb", buffering=0)
    encoder = msgspec.msgpack.Encoder()

    def write(event: Event) -> None:
        encoded = encoder.encode(event)
        file.write(len(encoded).to_bytes(LENGTH_BYTES, "big") + encoded)

    return RecordingCore(parts, clock, write)
