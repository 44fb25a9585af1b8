"""Errors of work in a sandboxed process."""

from __future__ import annotations

import signal


class SandboxError(Exception):
    """Base of the errors of this package."""


class LimitPassedError(SandboxError):
    """The work takes more time or memory than it may; the message says which limit, as the end of a sentence."""


class MemoryPassedError(LimitPassedError):
    """The work takes more memory than there was."""

    def __init__(self, message: str, *, after_other_work: bool) -> None:
        super().__init__(message)
        self.after_other_work = after_other_work
        """Whether some of the memory may have been taken by work that the process did before."""


class ProcessEndedError(SandboxError):
    """The process ended, or was killed from outside."""

    def __init__(self, status: int) -> None:
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        super().__init__(how)


class ClosedError(SandboxError):
    """The server is shutting down."""


class NoSandboxError(SandboxError):
    """No sandbox can be had on this machine; the message says why and what to do."""


class SandboxBrokenError(SandboxError):
    """A sandbox was not set up this time; the message is bubblewrap's."""
