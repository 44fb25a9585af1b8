"""What can go wrong when engine processes are started."""

from __future__ import annotations


class LaunchError(Exception):
    """No process can be started, such as for want of a place; the message says why."""
