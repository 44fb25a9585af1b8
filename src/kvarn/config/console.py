"""Settings of the console."""

from __future__ import annotations

from pydantic import Field

from kvarn.config.section import Section


class ConsoleConfig(Section):
    """Console in the browser, at `/console`. See docs/console.md."""

    enabled: bool = True
    """Serve the console and its data."""

    url: str | None = Field(None, pattern=r"^https?://[^/?#\s]+(/[^?#\s]*)?$")
    """Address under which browsers reach the server, such as `https://llm.example.com` or, below a prefix,
    `https://example.com/llm`: needed behind a proxy that ends TLS or changes `Host`, so that cookies are marked as
    secure and providers lead back here. Default: as browsers ask for it."""

    session_hours: float = Field(12.0, gt=0, le=720)
    """Hours after which who signed in to the console signs in again."""
