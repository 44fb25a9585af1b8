"""Scripts that several gateways, or the processes of one, run on what they count together.

A script stands once in Lua, for Redis, and once in Python, for the main process of a server. Both take the same keys
and argument, and answer the same.
"""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvarn.clock import SYSTEM_CLOCK


class Script:
    """A script of Redis, known there by the digest of its text, and by its name to `LocalScripts`."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


COUNTS = Script("counts", Path(__file__).with_name("counts.lua").read_text(encoding="utf-8"))
"""The limits' script."""

RunScript = Callable[[Sequence[str], bytes], bytes]
"""A script in Python: from its keys and its argument to its answer."""


@dataclass(slots=True)
class Call:
    """One run of a script."""

    script: Script
    keys: list[str]
    argument: bytes
    reply: asyncio.Future[bytes] | None = None
    """Set once it is sent for a caller that waits."""
    called: float = field(default_factory=SYSTEM_CLOCK.now)


class ScriptRunner(ABC):
    """Runs scripts where the counts are."""

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
        """Run a script and return its answer.

        Raises:
            LimitsAwayError: It does not answer. The script may have run all the same.
        """

    @abstractmethod
    def send(self, call: Call) -> None:
        """Run a script whose answer is not needed."""


class LocalScripts(ScriptRunner):
    """Runs them in this process; never away.

    Args:
        scripts: In Python, by their names.
    """

    def __init__(self, scripts: Mapping[str, RunScript]) -> None:
        super().__init__()
        self._scripts = scripts

    def run(self, name: str, keys: Sequence[str], argument: bytes) -> bytes:
        """The answer of the script of this name."""
        return self._scripts[name](keys, argument)

    async def ask(self, call: Call) -> bytes:
        """Run a script and return its answer."""
        return self.run(call.script.name, call.keys, call.argument)

    def send(self, call: Call) -> None:
        """Run a script."""
        self.run(call.script.name, call.keys, call.argument)
