"""Code in containers: which of their interpreters live in this process, and what goes in and out of them.

    container (row, files) ──files──> interpreter (process) ──files that code wrote──> container

A container is rows and files in the store, for all gateway processes; its variables are in the interpreter of one
process, and are lost with it. The row names the interpreter that used it last: one that is another's successor starts
anew, and its first result says that variables are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.sandbox import SandboxConfig
from kvarn.fairness.semaphore import FairSemaphore
from kvarn.jobs.periodic import Periodic
from kvarn.sandbox.bubblewrap import find_bubblewrap
from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError, StorageFullError
from kvarn.store.ids import new_id
from kvarn.store.models import Container, File
from kvarn.store.owner import Owner
from kvarn.store.repositories import containers as stored
from kvarn.store.repositories.containers import ContainerFullError
from kvarn.store.repositories.contents import read_content
from kvarn.tools.code_interpreter.interpreter import CodeReply, Interpreter, InterpreterEndedError

_SWEEP_EVERY_S = 30.0
_LOST = "Variables and imports of earlier code are gone: the interpreter was restarted. The files are still there."


@dataclass(frozen=True, slots=True)
class CodeOutcome:
    """An end of a piece of code, with what the model and the client are told."""

    logs: str
    failed: bool
    files: Sequence[File] = ()
    """Those that it wrote, new or again."""
    notes: Sequence[str] = ()
    processor_s: float = 0.0


@dataclass(slots=True)
class _Live:
    """A container's interpreter in this process."""

    interpreter: Interpreter
    tenant: str
    idle_s: int
    file_ids: dict[str, str] = field(default_factory=dict)
    """Ids of the container's files that it has, by path."""
    used_s: float = 0.0


def packages_folder(config: SandboxConfig, data_dir: Path) -> Path:
    """The folder of packages that code may import; it need not be there."""
    return Path(config.code_packages).expanduser() if config.code_packages else data_dir / "code_packages"


class Containers:
    """The live interpreters of this process. Belongs to one event loop."""

    def __init__(self, store: Store, config: SandboxConfig, data_dir: Path) -> None:
        self.store = store
        self.config = config
        self._packages = packages_folder(config, data_dir)
        self._live: dict[str, _Live] = {}
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        """One for each container that is used or waited for, and by how many."""
        per_tenant = max(1, config.code_containers // 2)
        self._places = FairSemaphore(config.code_containers, per_tenant=per_tenant)
        self._per_tenant = per_tenant
        self._sweeping = Periodic("idle interpreters", self._sweep, _SWEEP_EVERY_S)

    @property
    def max_bytes(self) -> int:
        """Size that a container's files have together at most."""
        return self.config.code_files_mib * 2**20

    @property
    def packages(self) -> Path | None:
        return self._packages if self._packages.is_dir() else None

    @property
    def pids(self) -> list[int]:
        return [live.interpreter.process.pid for live in self._live.values()]

    async def run(self, owner: Owner, container_id: str, code: str, timeout_s: float) -> CodeOutcome:
        """Run code in a container, after the code that runs there now. A call that is cancelled ends its interpreter.
        Raises NoSandboxError, `NotFoundError` (expired or deleted), `StoreError`."""
        async with self._alone(container_id):
            live, notes = await self._interpreter(owner, container_id)
            try:
                outcome = await self._run(owner, container_id, live, code, timeout_s, notes)
                if self._places.is_wanted(live.tenant):
                    await self._end(container_id)
                return outcome
            except TimeoutError:
                await self._end(container_id)
                why = f"The code was stopped after {timeout_s:g} s."
            except InterpreterEndedError as error:
                await self._end(container_id)
                why = f"The interpreter ended: {error}."
            except BaseException:
                await self._end(container_id)
                raise
            return CodeOutcome(why, failed=True, notes=[*notes, "Variables and files of this code are lost."])

    async def forget(self, container_id: str) -> None:
        """End the interpreter of a container that is deleted."""
        async with self._alone(container_id):
            await self._end(container_id)

    def start(self) -> None:
        self._sweeping.start()

    async def stop(self) -> None:
        await self._sweeping.stop()
        await asyncio.gather(*[self._end(container_id) for container_id in list(self._live)])

    async def _run(
        self, owner: Owner, container_id: str, live: _Live, code: str, timeout_s: float, notes: list[str]
    ) -> CodeOutcome:
        async with asyncio.timeout(timeout_s):
            container = await self._send_files(owner, container_id, live)
            reply = await live.interpreter.run(code)
            written = await self._take_files(container, live, reply, notes)
        for path in reply.removed:
            if (file_id := live.file_ids.pop(path, None)) is not None:
                with suppress(NotFoundError):  # its client has deleted it meanwhile, or all of the container
                    await stored.delete_container_file(self.store, owner, container_id, file_id)
        live.used_s = SYSTEM_CLOCK.now()
        return CodeOutcome(reply.logs, reply.failed, written, notes, reply.processor_s)

    async def _interpreter(self, owner: Owner, container_id: str) -> tuple[_Live, list[str]]:
        """The interpreter of a container, and what is to be said of it."""
        live = self._live.get(container_id)
        if live is not None and not live.interpreter.is_alive:
            await self._end(container_id)
            live = None
        interpreter_id = live.interpreter.id if live is not None else new_id("")
        use = await stored.use_container(self.store, owner, container_id, interpreter_id)
        if live is not None and use.is_last_user:
            return live, []
        await self._end(container_id)  # another process has gone on with it
        await self._take_place(owner.organization_id)
        try:
            runner = await asyncio.to_thread(find_bubblewrap)
            memory_mib = min(use.container.memory_mib, self.config.code_memory_mib)
            interpreter = await Interpreter.start(
                runner,
                interpreter_id,
                memory_mib=memory_mib,
                files_mib=self.config.code_files_mib,
                packages=self.packages,
            )
        except BaseException:
            self._places.release(owner.organization_id)
            raise
        live = _Live(interpreter, owner.organization_id, use.container.idle_s, used_s=SYSTEM_CLOCK.now())
        self._live[container_id] = live
        return live, [] if use.is_first else [_LOST]

    async def _send_files(self, owner: Owner, container_id: str, live: _Live) -> Container:
        """Bring the interpreter's files to the state of the container's: clients add and delete some, too."""
        container = await stored.find_container(self.store, owner, container_id)
        files = {file.filename: file for file in await stored.all_container_files(self.store, container)}
        for path in [path for path in live.file_ids if path not in files]:
            await live.interpreter.remove(path)
            del live.file_ids[path]
        for path, file in files.items():
            if live.file_ids.get(path) != file.id:
                await live.interpreter.put(path, file.size, read_content(self.store, file))
                live.file_ids[path] = file.id
        return container

    async def _take_files(self, container: Container, live: _Live, reply: CodeReply, notes: list[str]) -> list[File]:
        """Keep the files that code wrote. One that there is no room for stays with the interpreter alone."""
        written = []
        for path, size in reply.files:
            content = live.interpreter.content(size)
            try:
                file = await stored.write_container_file(
                    self.store, container, path, content, source="assistant", max_bytes=self.max_bytes
                )
            except (StorageFullError, ContainerFullError) as error:
                notes.append(f"The file {path} was not kept: {error}")
                async for _ in content:  # its rest; the next file's content follows
                    pass
            else:
                live.file_ids[path] = file.id
                written.append(file)
        return written

    async def _take_place(self, tenant: str) -> None:
        """A place for one more interpreter: the one that has been idle longest makes room, a tenant's own where that
        has as many as it may."""
        while not self._places.try_acquire(tenant):
            own = self._places.held(tenant) >= self._per_tenant
            idle = [
                (live.used_s, container_id)
                for container_id, live in self._live.items()
                if container_id not in self._locks and (live.tenant == tenant or not own)
            ]
            if not idle:
                await self._places.acquire(tenant)
                return
            await self._end(min(idle)[1])

    async def _sweep(self) -> None:
        now = SYSTEM_CLOCK.now()
        for container_id, live in list(self._live.items()):
            if container_id not in self._locks and live.used_s + live.idle_s <= now:
                await self._end(container_id)

    async def _end(self, container_id: str) -> None:
        live = self._live.pop(container_id, None)
        if live is not None:
            try:
                await live.interpreter.close()
            finally:
                self._places.release(live.tenant)

    @asynccontextmanager
    async def _alone(self, container_id: str) -> AsyncGenerator[None, None]:
        lock, users = self._locks.get(container_id, (asyncio.Lock(), 0))
        self._locks[container_id] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[container_id]
            if users == 1:
                del self._locks[container_id]
            else:
                self._locks[container_id] = (lock, users - 1)
