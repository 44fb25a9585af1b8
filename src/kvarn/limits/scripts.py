"""Scripts that several gateways, or the processes of one, run on what they count together."""

from __future__ import annotations

import asyncio
import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field


class Script:
    """A script of Redis, known there by the digest of its text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@dataclass(slots=True)
class Call:
    """One run of a script."""

    script: Script
    keys: list[str]
    argument: bytes
    reply: asyncio.Future[bytes] | None = None
    """Set once it is sent for a caller that waits."""
    called: float = field(default_factory=time.monotonic)


class ScriptRunner(ABC):
    """Runs scripts where the counts are: in Redis, or in the main process of a server."""

    def __init__(self) -> None:
        self.probes: list[Call] = []
        """Run to find out whether it works."""
        self.when_back: list[Callable[[], None]] = []
        """Called when it works again after an outage."""

    @property
    def away(self) -> bool:
        """Whether it does not answer."""
        return False

    @abstractmethod
    async def ask(self, call: Call) -> bytes:
        """What a script answers.

        Raises:
            LimitsAwayError: It does not answer. The script may have run all the same.
        """

    @abstractmethod
    def send(self, call: Call) -> None:
        """Run a script whose answer is not needed."""
