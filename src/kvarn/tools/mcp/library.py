"""The protocol's SDK: an extra, which takes a second to import."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module

from kvarn.config.extras import missing_extra

_MODULES = ("mcp.client.stdio", "mcp.client.streamable_http", "mcp.server.streamable_http_manager")


class SdkMissingError(Exception):
    """It is not installed; the message names the command that installs it."""


async def load_sdk(needed_by: str) -> None:
    """Import it in a thread, where others are served meanwhile. Raises `SdkMissingError`."""
    if _MODULES[-1] in sys.modules:
        return
    if (missing := missing_extra(needed_by, "mcp")) is not None:
        raise SdkMissingError(missing)
    await asyncio.to_thread(lambda: [import_module(name) for name in _MODULES])
