"""Enters every piece of work that was done into the ledger; comes last, so that what is refused never gets there."""

from __future__ import annotations

import time
from functools import partial

from kvarn.metering.event import InFlight, Measured
from kvarn.metering.journal import Slot
from kvarn.metering.service import Metering, wall_clock_of
from kvarn.serving.pipeline import Settle, Work


class LedgerStage:
    """Notes each request before the engine gets it, and its tokens before the client hears of them."""

    def __init__(self, metering: Metering) -> None:
        self._metering = metering

    async def enter(self, work: Work) -> Settle:
        """Never refuses."""
        principal = work.principal
        request = InFlight(
            id=work.id,
            request_id=work.request_id,
            organization_id=principal.organization_id,
            project_id=principal.project_id,
            user_id=principal.user_id,
            key_id=principal.key_id,
            endpoint=work.endpoint,
            model=work.model,
            model_version=work.model_version,
            adapter=work.adapter,
            replica=work.replica,
            service_tier=work.service_tier,
            batch_id=work.batch_id,
            writes=work.max_output_tokens > 0,
            started=wall_clock_of(work.received),
        )
        slot = self._metering.begin(request, work.received)
        if slot is not None:
            work.usage.on_change = slot.watch
        return partial(self._record, request, slot)

    async def _record(self, request: InFlight, slot: Slot | None, work: Work) -> None:
        """Enter it, unless nothing was done: the engine never got it, or refused it."""
        usage = work.usage
        if not usage.did_work:
            self._metering.forget(slot)
            return
        ttft = None if usage.first_token is None else usage.first_token - work.received
        measured = Measured(
            str(work.outcome), usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, time.time(), ttft
        )
        self._metering.finish(slot, request, measured)
