"""States of evaluation runs."""

from __future__ import annotations

RUN_OVER = ("completed", "failed", "cancelled")
