"""Errors at the start of engine processes."""

from __future__ import annotations


class LaunchError(Exception):
    """No process can be started, such as for want of a place; the message says why."""
