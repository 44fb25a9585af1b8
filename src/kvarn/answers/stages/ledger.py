"""Enters every piece of work that was done into the ledger; comes last, so that what is refused never gets there."""

from __future__ import annotations

import msgspec

from kvarn.answers.work import Work
from kvarn.clock import SYSTEM_CLOCK
from kvarn.metering.event import InFlight, Measured
from kvarn.metering.journal import Slot
from kvarn.metering.service import Metering, wall_clock_of


async def note_work(metering: Metering, work: Work) -> None:
    """Note a request before the engine gets it, and its tokens before the client hears of them. Never refuses."""
    principal, record = work.principal, work.record
    request = InFlight(
        id=work.id,
        request_id=record.request_id,
        organization_id=principal.organization_id,
        project_id=principal.project_id,
        user_id=principal.user_id,
        key_id=principal.key_id,
        endpoint=record.endpoint,
        model=work.model,
        model_version=work.model_version,
        adapter=work.adapter,
        route="" if record.route is None else record.route.name,
        replica=work.replica,
        service_tier=work.service_tier,
        batch_id=record.batch_id,
        writes=work.max_output_tokens > 0,
        started=wall_clock_of(record.received),
    )
    slot = metering.begin(request, record.received)
    if slot is not None:
        work.usage.on_change = slot.watch
    work.closing.callback(_settle, metering, request, slot, work)


def _settle(metering: Metering, request: InFlight, slot: Slot | None, work: Work) -> None:
    """Enter it, unless nothing was done: the engine never got it, or refused it."""
    usage = work.usage
    if not usage.did_work:
        metering.forget(slot)
        return
    ttft = None if usage.first_token is None else usage.first_token - work.record.received
    measured = Measured(
        str(work.outcome), usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, SYSTEM_CLOCK.time(), ttft
    )
    if work.replica != request.replica:  # another one went on with it
        request = msgspec.structs.replace(request, replica=work.replica)
    metering.finish(slot, request, measured)
