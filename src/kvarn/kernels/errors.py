"""What can go wrong when kernels are chosen."""

from __future__ import annotations


class KernelError(ValueError):
    """Base of this room's errors."""


class UnknownBackendError(KernelError):
    """No backend of that name."""


class UnsupportedByBackendError(KernelError):
    """The chosen backend cannot do what the configuration asks for; the message says which can."""
