"""Plans of capacity for clients, made in processes whose time and memory are bounded: a config.json is a client's."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import msgspec

from kvarn.answers.errors import shutting_down
from kvarn.planner.request import PlanRequest
from kvarn.planner.sandbox_messages import Asked, Made, Refused
from kvarn.sandbox.errors import ClosedError, LimitPassedError, ProcessEndedError
from kvarn.sandbox.pool import SandboxPool
from kvarn.sandbox.process import SandboxLimits
from kvarn.wire.openai.errors import invalid_request

_PROCESSES = 2  # at most; each takes 60 MB. They are started when the first plan is asked for.


_TIMES_AS_LONG = 5
"""Time of a plan over that of other work for clients: one device takes most of a second, and several are compared."""


class PlanningPool:
    def __init__(self, limits: SandboxLimits) -> None:
        limits = replace(limits, timeout_s=_TIMES_AS_LONG * limits.timeout_s)
        self._limits = limits
        self._pool = SandboxPool("kvarn.planner.sandboxed", limits, _PROCESSES)

    async def plan(self, tenant: str, request: PlanRequest, want: Literal["json", "html"]) -> str:
        """The plan in the form that is wanted. Raises `ApiError` 400: it cannot be made, or takes more than it may."""
        asked = Asked(want=want, request=request.model_dump(mode="json"))
        try:
            reply = await self._pool.call(tenant, msgspec.json.encode(asked))
        except LimitPassedError:
            limits = f"{self._limits.timeout_s:g} s of a processor and {self._limits.memory_bytes // 2**20} MiB"
            raise invalid_request(f"The plan takes more than {limits}: compare fewer devices.", "devices") from None
        except ProcessEndedError as error:
            raise invalid_request(f"The plan cannot be made: the process {error}.") from None
        except ClosedError:
            raise shutting_down() from None
        made = msgspec.json.decode(reply, type=Made | Refused)
        if isinstance(made, Refused):
            raise invalid_request(made.message, "model")
        return made.text

    async def close(self) -> None:
        await self._pool.close()
