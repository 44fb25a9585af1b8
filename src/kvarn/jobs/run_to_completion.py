"""Awaiting work that must not be left half done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

ResultT = TypeVar("ResultT")

_log = logging.getLogger("kvarn.jobs")


async def run_to_completion(work: Awaitable[ResultT]) -> ResultT:
    """Await work that runs to its end even if the caller is cancelled, once or more often. The cancellation is raised
    after that, and an error of the work is logged."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("background work failed after its caller was cancelled", exc_info=error)
        raise
