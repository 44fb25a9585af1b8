"""Takes, renews and settles reservations by the script of the limits, wherever that runs."""

from __future__ import annotations

import asyncio

import msgspec

from kvarn.limits.local import Timing
from kvarn.limits.scripts import COUNTS, Call, ScriptRunner
from kvarn.limits.types import Decision, LimitsAwayError, Reservation, Usage
from kvarn.store.ids import new_id


class Backend:
    """Keeps counts and decides by them. Settlements are kept while the runner is away, for as long as they would have
    an effect; repeated, they have none.

    Args:
        runner: Runs the script.
        timing: How long things count.
    """

    def __init__(self, runner: ScriptRunner, timing: Timing) -> None:
        self._runner = runner
        self._timing = timing
        nothing = Reservation(new_id("probe_"), "kvarn", (), 0)
        runner.probes += [self._call("take", nothing), self._call("settle", nothing)]

    async def take(self, reservation: Reservation) -> Decision:
        """Admit a reservation if every limit has room for it; otherwise count nothing.

        Raises:
            LimitsAwayError: The counts cannot be reached. Should it have been admitted all the same, it is given back.
        """
        call = self._call("take", reservation)
        try:
            return read_decision(reservation, await self._runner.ask(call))
        except (LimitsAwayError, asyncio.CancelledError):
            if call.reply is not None:  # it was sent
                self.settle(reservation, 0, whole=True)
            raise

    def renew(self, reservation: Reservation, used: int) -> None:
        """The request still runs and has used so many tokens: what is over its reservation is counted now. Not repeated
        where the runner is away, since the next renewal says the same."""
        if not self._runner.away:
            self._runner.send(self._call("renew", reservation, used))

    def settle(self, reservation: Reservation, used: int, *, whole: bool = False) -> None:
        """The request has ended and has used so many tokens; `whole` gives the request back too."""
        self._runner.send(self._call("settle", reservation, used, whole=whole))

    def _call(self, operation: str, reservation: Reservation, used: int = 0, *, whole: bool = False) -> Call:
        return Call(COUNTS, *script_input(operation, reservation, self._timing, used, whole=whole))


def script_input(
    operation: str, reservation: Reservation, timing: Timing, used: int = 0, *, whole: bool = False
) -> tuple[list[str], bytes]:
    """Keys and argument of `counts.lua`; see there."""
    mark = f"kvarn:limits:{{{reservation.organization_id}}}:work:{reservation.work_id}"
    times = timing.slot_ms, timing.window, timing.lease_ms
    argument = [operation, *times, reservation.work_id, reservation.tokens, used, whole]
    for limit in reservation.limits:
        argument += [str(limit.kind), limit.maximum]
    return [mark, *[limit.key for limit in reservation.limits]], msgspec.msgpack.encode(argument)


def read_decision(reservation: Reservation, reply: bytes) -> Decision:
    """Decode the script's answer."""
    admitted, *numbers = msgspec.msgpack.decode(reply)
    usages = tuple(Usage(*numbers[start : start + 3]) for start in range(0, len(numbers), 3))
    return Decision(reservation, admitted, usages)
