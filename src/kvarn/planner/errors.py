"""Errors of plans."""

from __future__ import annotations


class PlanError(ValueError):
    """The question cannot be answered; the message says what to change."""
