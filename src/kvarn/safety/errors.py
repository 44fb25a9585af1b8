"""What can go wrong in keeping watch."""

from __future__ import annotations


class SafetyError(ValueError):
    """The safety settings, or what they name, cannot be used; the message says what to do."""
