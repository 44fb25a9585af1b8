"""Simulations of recent traffic: one at a time, each in a process of its own whose time and memory are bounded."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from hashlib import blake2b

import msgspec

from kvarn.answers.errors import shutting_down
from kvarn.fairness.semaphore import FairSemaphore
from kvarn.sandbox.errors import ClosedError, LimitPassedError, MemoryPassedError, ProcessEndedError
from kvarn.sandbox.process import SandboxLimits, SandboxProcess
from kvarn.simulator.what_if_messages import NotSimulated, Progress, Simulated, WhatIf
from kvarn.wire.openai.errors import invalid_request

MAX_REQUESTS = 20_000
"""Requests of a simulation: the newest of the window."""
_LIMITS = SandboxLimits(timeout_s=120.0, memory_bytes=2 * 1024**3)
_KEPT = 32
"""Answers that are kept: those asked for last. The same question has the same answer, so any link finds it again."""


class WhatIfRuns:
    """Runs simulations for as long as somebody waits for them."""

    def __init__(self) -> None:
        self._turns = FairSemaphore(1, per_tenant=1)
        self._kept: OrderedDict[bytes, Simulated] = OrderedDict()
        self._running: set[SandboxProcess] = set()
        self._closed = False

    async def run(self, tenant: str, asked: WhatIf) -> AsyncGenerator[Progress | Simulated, None]:
        """How far it is, and in the end the answer. Whoever stops listening ends the simulation. Raises `ApiError`:
        400, it cannot be simulated, or takes more than it may; 503, the server stops."""
        payload = msgspec.json.encode(asked)
        digest = blake2b(payload, digest_size=16).digest()
        if (kept := self._kept.get(digest)) is not None:
            self._kept.move_to_end(digest)
            yield kept
            return
        yield Progress(0.0)
        async with self._turns.place(tenant):
            news: asyncio.Queue[bytes] = asyncio.Queue()
            work = asyncio.create_task(self._work(payload, news))
            try:
                while True:
                    told = asyncio.create_task(news.get())
                    await asyncio.wait({work, told}, return_when=asyncio.FIRST_COMPLETED)
                    if told.done():
                        yield msgspec.json.decode(told.result(), type=Progress)
                        continue
                    told.cancel()
                    break
                answer = self._kept[digest] = await work
            finally:
                work.cancel()
                await asyncio.wait({work})
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        yield answer

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*[process.close() for process in self._running])

    async def _work(self, payload: bytes, news: asyncio.Queue[bytes]) -> Simulated:
        if self._closed:
            raise shutting_down()
        process = SandboxProcess("kvarn.simulator.what_if", _LIMITS)
        self._running.add(process)
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
            self._running.discard(process)
        made = msgspec.json.decode(reply, type=Simulated | NotSimulated)
        if isinstance(made, NotSimulated):
            raise invalid_request(made.message)
        return made
