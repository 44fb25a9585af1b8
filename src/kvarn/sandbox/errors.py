"""Errors of work in a sandboxed process."""

from __future__ import annotations

import signal


class SandboxError(Exception):
    """Base of the errors of this package."""


class LimitPassedError(SandboxError):
    """The work takes more time or memory than it may; the message says which limit, as the end of a sentence."""


class ProcessEndedError(SandboxError):
    """The process ended by itself, or somebody else killed it."""

    def __init__(self, status: int) -> None:
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        super().__init__(how)


class ClosedError(SandboxError):
    """The server is shutting down."""
