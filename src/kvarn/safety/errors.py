"""Errors of moderation and of the log of prompts."""

from __future__ import annotations


class SafetyError(ValueError):
    """The safety settings, or what they name, cannot be used; the message says what to do."""
