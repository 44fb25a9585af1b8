"""The ledger's stage."""

from __future__ import annotations

import msgspec

from kvarn.answers.turn import Turn
from kvarn.clock import SYSTEM_CLOCK
from kvarn.metering.event import InFlight, Measured
from kvarn.metering.journal import Slot
from kvarn.metering.service import Metering, wall_clock_of


class LedgerStage:
    """Enters every turn that did work into the ledger; comes last, so that what is refused never gets there."""

    name = "ledger"

    def __init__(self, metering: Metering) -> None:
        self.metering = metering

    async def enter(self, turn: Turn) -> None:
        """Note a turn before the engine gets it, and its tokens before the client hears of them. Never refuses."""
        record = turn.record
        principal, route = record.principal, record.choice.route
        request = InFlight(
            id=turn.id,
            request_id=record.request_id,
            organization_id=principal.organization_id,
            project_id=principal.project_id,
            user_id=principal.user_id,
            key_id=principal.key_id,
            endpoint=record.endpoint,
            model=turn.model,
            model_version=turn.model_version,
            adapter=turn.adapter,
            route="" if route is None else route.name,
            replica=turn.replica,
            service_tier=turn.service_tier,
            batch_id=None if record.deferred is None else record.deferred.batch_id,
            cache=None if turn.caching is None else turn.caching.hit,
            writes=turn.max_output_tokens > 0,
            started=wall_clock_of(record.timeline.received_s),
        )
        slot = self.metering.begin(request, record.timeline.received_s)
        if slot is not None:
            turn.usage.on_change = slot.watch
        turn.closing.callback(self._settle, request, slot, turn)

    def _settle(self, request: InFlight, slot: Slot | None, turn: Turn) -> None:
        """Enter it, unless nothing was done: the engine never got it, or refused it."""
        usage = turn.usage
        if not usage.did_work:
            self.metering.forget(slot)
            return
        ttft = None if usage.first_token is None else usage.first_token - turn.record.timeline.received_s
        measured = Measured(
            str(turn.outcome),
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
            SYSTEM_CLOCK.time(),
            ttft,
        )
        if turn.replica != request.replica:  # another one went on with it
            request = msgspec.structs.replace(request, replica=turn.replica)
        self.metering.finish(slot, request, measured)
