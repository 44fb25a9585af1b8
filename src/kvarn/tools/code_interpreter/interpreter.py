"""One live interpreter: a process in a sandbox, files that it has, and code that it runs."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec

from kvarn.sandbox.bubblewrap import WORK_FOLDER, Program, ProgramLimits, ProgramRunner, kill
from kvarn.tools.code_interpreter.guest import MAX_FILES

_GUEST = Path(__file__).with_name("guest.py")
_MODULE_FOLDER = "/run/kvarn/code"
_PACKAGES_FOLDER = "/run/kvarn/packages"
_MAX_HEAD_BYTES = 8 * 2**20
_MAX_LOG_CHARACTERS = 100_000
_MAX_PATH_CHARACTERS = 400
_PIECE_BYTES = 256 * 1024
_LIFETIME_PROCESSOR_S = 3600


class InterpreterEndedError(Exception):
    """The process is gone, or says what it should not; the message says why."""


class CodeReply(msgspec.Struct, frozen=True):
    """An end of a piece of code, as the guest tells it; none of it is trusted."""

    logs: Annotated[str, msgspec.Meta(max_length=_MAX_LOG_CHARACTERS + 100)]
    failed: bool
    processor_s: float
    files: Annotated[list[tuple[str, Annotated[int, msgspec.Meta(ge=0)]]], msgspec.Meta(max_length=MAX_FILES)]
    """Paths of new and changed files and their sizes, in the order in which their contents follow."""
    removed: list[str]


_DECODER = msgspec.json.Decoder(CodeReply)


@dataclass(slots=True)
class Interpreter:
    """Belongs to one event loop; does one thing at a time."""

    id: str
    process: Process
    max_bytes: int
    """Size that all files have together at most."""

    @classmethod
    async def start(
        cls, runner: ProgramRunner, interpreter_id: str, *, memory_mib: int, files_mib: int, packages: Path | None
    ) -> Interpreter:
        max_bytes = files_mib * 2**20
        program = Program(
            "guest",
            readable=((_GUEST, f"{_MODULE_FOLDER}/guest.py"), *([(packages, _PACKAGES_FOLDER)] if packages else [])),
            search=(_MODULE_FOLDER, _PACKAGES_FOLDER),
            environment=(("OPENBLAS_NUM_THREADS", "1"), ("OMP_NUM_THREADS", "1")),
            arguments=(str(_MAX_LOG_CHARACTERS), str(max_bytes)),
        )
        limits = ProgramLimits(
            memory_bytes=memory_mib * 2**20,
            processor_s=_LIFETIME_PROCESSOR_S,
            work_bytes=max_bytes + 2**20,
            file_bytes=max_bytes,
        )
        return cls(interpreter_id, await runner.start(program, limits), max_bytes)

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None

    async def put(self, path: str, size: int, content: AsyncGenerator[bytes, None]) -> None:
        """Write a file. Raises InterpreterEndedError."""
        left = size
        await self._send(json.dumps({"put": path, "size": size}).encode())
        async for piece in content:
            left -= len(piece)
            await self._write(piece)
        if left:
            raise InterpreterEndedError("a file changed while it was copied into the container")

    async def remove(self, path: str) -> None:
        await self._send(json.dumps({"remove": path}).encode())

    async def run(self, code: str) -> CodeReply:
        """Run code. Read all `contents` before anything else is done. Raises InterpreterEndedError."""
        await self._send(json.dumps({"code": code}).encode())
        size = int.from_bytes(await self._read(8), "big")
        if size > _MAX_HEAD_BYTES:
            raise InterpreterEndedError("it wrote more than it may")
        try:
            reply = _DECODER.decode(await self._read(size))
        except msgspec.MsgspecError:
            raise InterpreterEndedError("it wrote something else than a result") from None
        if sum(size for _, size in reply.files) > self.max_bytes or not all(_is_plain(path) for path, _ in reply.files):
            raise InterpreterEndedError("it wrote more than it may")
        return reply

    async def content(self, size: int) -> AsyncGenerator[bytes, None]:
        """The content of the reply's next file. Raises InterpreterEndedError."""
        while size:
            piece = await self._read(min(size, _PIECE_BYTES))
            size -= len(piece)
            yield piece

    async def close(self) -> None:
        await kill(self.process)

    async def why_ended(self) -> str:
        """A sentence's end on a process that ended without being asked to."""
        assert self.process.stderr is not None
        status = await self.process.wait()
        said = (await self.process.stderr.read(2000)).decode(errors="replace").strip().splitlines()
        if status > 128 or status < 0:
            return "its process was killed, for memory or by a fault of a library"
        return f"its process ended with status {status}{f': {said[-1]}' if said else ''}"

    async def _send(self, head: bytes) -> None:
        await self._write(len(head).to_bytes(8, "big") + head)

    async def _write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(data)
            await self.process.stdin.drain()
        except OSError:
            raise InterpreterEndedError(await self.why_ended()) from None

    async def _read(self, size: int) -> bytes:
        assert self.process.stdout is not None
        try:
            return await self.process.stdout.readexactly(size)
        except asyncio.IncompleteReadError:
            raise InterpreterEndedError(await self.why_ended()) from None


def shown_path(path: str) -> str:
    """The path of a container's file as clients and code see it."""
    return f"{WORK_FOLDER}/{path}"


def _is_plain(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return (
        0 < len(path) <= _MAX_PATH_CHARACTERS
        and path.isprintable()
        and not path.startswith("/")
        and ".." not in parts
        and path == str(PurePosixPath(path))
    )
