"""Calls of tools in the ledger: each is an event of its own, priced by its type."""

from __future__ import annotations

from kvarn.answers.record import RequestRecord
from kvarn.clock import SYSTEM_CLOCK
from kvarn.metering.event import TOOLS, InFlight, Measured
from kvarn.metering.service import Metering, wall_clock_of


def enter_call(metering: Metering, record: RequestRecord, call_id: str, kind: str, status: str, began_s: float) -> None:
    """Enter a call that has ended. It has no tokens: those that the model reads of its result are in the next turn's
    event. Its price is that of the model `tool:TYPE` (`per_request`)."""
    principal = record.principal
    request = InFlight(
        id=f"use_{call_id}",
        request_id=record.request_id,
        organization_id=principal.organization_id,
        project_id=principal.project_id,
        user_id=principal.user_id,
        key_id=principal.key_id,
        endpoint=TOOLS,
        model=f"tool:{kind}",
        batch_id=None if record.deferred is None else record.deferred.batch_id,
        started=wall_clock_of(began_s),
    )
    outcome = {"completed": "finished", "cancelled": "aborted"}.get(status, "failed")
    metering.finish(None, request, Measured(outcome, 0, 0, 0, SYSTEM_CLOCK.time(), None))
