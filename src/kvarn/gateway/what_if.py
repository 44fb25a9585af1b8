"""Simulations of recent traffic: one at a time, each in a process of its own whose time and memory are bounded."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator

import msgspec

from kvarn.answers.errors import shutting_down
from kvarn.clock import SYSTEM_CLOCK, Clock
from kvarn.fairness.semaphore import FairSemaphore
from kvarn.sandbox.errors import ClosedError, LimitPassedError, MemoryPassedError, ProcessEndedError
from kvarn.sandbox.process import SandboxLimits, SandboxProcess
from kvarn.wire.openai.errors import invalid_request
from kvarn.wire.what_if import NotSimulated, Progress, Simulated, WhatIf

MAX_REQUESTS = 20_000
"""Requests of a simulation: the newest of the window."""
_LIMITS = SandboxLimits(timeout_s=120.0, memory_bytes=2 * 1024**3)
_KEPT = 32
_KEPT_S = 3600.0
"""Answers that are kept, the latest, and for how long: a link finds its answer again while engines learn new times."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The requests that are simulated."""

    start: float
    end: float
    requests: int
    newest_only: bool
    """Whether there were more than are simulated."""


class WhatIfRuns:
    """Runs simulations for as long as somebody waits for them."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._turns = FairSemaphore(1, per_tenant=1)
        self._kept: OrderedDict[str, tuple[float, Window, Simulated]] = OrderedDict()
        self.running: set[SandboxProcess] = set()
        self._closed = False

    def find(self, question: str) -> tuple[Window, Simulated] | None:
        """The answer to a question, where it was asked in this process within the hour."""
        kept = self._kept.get(question)
        return None if kept is None or self._clock.now() - kept[0] > _KEPT_S else kept[1:]

    async def run(
        self, tenant: str, question: str, window: Window, asked: WhatIf
    ) -> AsyncGenerator[Progress | Simulated, None]:
        """Progress, and in the end the answer. Whoever stops listening ends the simulation. Raises `ApiError`:
        400, it cannot be simulated, or takes more than it may; 503, the server stops."""
        payload = msgspec.json.encode(asked)
        yield Progress(0.0)
        async with self._turns.place(tenant):
            news: asyncio.Queue[bytes | None] = asyncio.Queue()
            work = asyncio.create_task(self._work(payload, news))
            work.add_done_callback(lambda _: news.put_nowait(None))
            try:
                while (told := await news.get()) is not None:
                    yield msgspec.json.decode(told, type=Progress)
                answer = await work
            finally:
                work.cancel()
                await asyncio.wait({work})
        self._kept[question] = self._clock.now(), window, answer
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        yield answer

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*[process.close() for process in self.running])

    async def _work(self, payload: bytes, news: asyncio.Queue[bytes | None]) -> Simulated:
        if self._closed:
            raise shutting_down()
        process = SandboxProcess("kvarn.simulator.what_if", _LIMITS)
        self.running.add(process)
        try:
            reply = await process.call(payload, news.put_nowait)
        except MemoryPassedError:
            mib = _LIMITS.memory_bytes // 2**20
            message = f"The simulation needs more than {mib} MiB of memory: choose a shorter range."
            raise invalid_request(message, "range") from None
        except LimitPassedError:
            message = f"The simulation needs more than {_LIMITS.timeout_s:g} s of a processor: choose a shorter range."
            raise invalid_request(message, "range") from None
        except ProcessEndedError as error:
            raise invalid_request(f"The simulation did not end: its process {error}.", "range") from None
        except ClosedError:
            raise shutting_down() from None
        finally:
            await process.close()
            self.running.discard(process)
        made = msgspec.json.decode(reply, type=Simulated | NotSimulated)
        if isinstance(made, NotSimulated):
            raise invalid_request(made.message)
        return made
