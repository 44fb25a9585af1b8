"""Settings of the console."""

from __future__ import annotations

from kvarn.config.section import Section


class ConsoleConfig(Section):
    """Console in the browser, at `/console`. See docs/console.md."""

    enabled: bool = True
    """Serve the console and its data."""
