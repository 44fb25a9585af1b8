"""Code in containers: what is kept between pieces of code, what is not, and what is lost."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from conditions import children, lives, until
from kvarn.config.sandbox import SandboxConfig
from kvarn.sandbox.bubblewrap import find_bubblewrap
from kvarn.sandbox.errors import NoSandboxError
from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError
from kvarn.store.owner import Owner
from kvarn.store.repositories.containers import (
    add_container,
    all_container_files,
    delete_container,
    find_container,
    new_container,
    write_container_file,
)
from kvarn.store.repositories.contents import read_content
from kvarn.tools.code_interpreter.containers import CodeOutcome, Containers
from kvarn.tools.code_interpreter.interpreter import CodeReply, Interpreter
from kvarn.tools.code_interpreter.provider import CodeTool
from new_tenants import create_organization

GENEROUS_S = 60.0


class World:
    """Containers of a store, which run code."""

    def __init__(self, store: Store, owner: Owner, folder: Path) -> None:
        self.store = store
        self.owner = owner
        self.folder = folder
        self.containers = self.process()

    def process(self, **config: Any) -> Containers:
        return Containers(self.store, SandboxConfig(code_files_mib=4, **config), self.folder)

    async def container(self) -> str:
        made = new_container(self.owner, name="c", idle_s=600, memory_mib=512, now=int(self.store.now()))
        await add_container(self.store, made)
        return made.id

    async def run(self, container_id: str, code: str, timeout_s: float = GENEROUS_S, **given: Any) -> CodeOutcome:
        return await (given.get("of") or self.containers).run(self.owner, container_id, code, timeout_s)

    async def files(self, container_id: str) -> dict[str, bytes]:
        container = await find_container(self.store, self.owner, container_id)
        files = await all_container_files(self.store, container)
        return {file.filename: b"".join([piece async for piece in read_content(self.store, file)]) for file in files}

    async def put(self, container_id: str, path: str, content: bytes) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield content

        container = await find_container(self.store, self.owner, container_id)
        await write_container_file(self.store, container, path, pieces(), source="user", max_bytes=2**20)


async def test_the_model_is_told_which_packages_there_are(store: Store, tmp_path: Path) -> None:
    containers = Containers(store, SandboxConfig(), tmp_path)
    owner = Owner("org", "project")
    container = new_container(owner, name="c", idle_s=600, memory_mib=512, now=0)
    tool = CodeTool(containers, owner, container, [])
    assert "Only the standard library can be imported." in tool.definition.description
    for name in ("numpy", "numpy.libs", "six-1.17.0.dist-info", "__pycache__", "bin"):
        (tmp_path / "code_packages" / name).mkdir(parents=True)
    (tmp_path / "code_packages" / "six.py").touch()
    assert "The standard library and numpy, six can be imported." in tool.definition.description


@pytest.fixture
async def world(store: Store, tmp_path: Path) -> AsyncGenerator[World, None]:
    try:
        find_bubblewrap()
    except NoSandboxError as error:
        pytest.skip(str(error))
    made = World(store, (await create_organization(store, "red")).owner, tmp_path)
    yield made
    await made.containers.stop()


async def test_variables_and_files_are_kept_between_pieces_of_code(world: World) -> None:
    container = await world.container()
    await world.put(container, "in.csv", b"1,2\n")
    first = await world.run(container, "x = open('/mnt/data/in.csv').read()\nprint('read', end='!')\nlen(x)")
    assert (first.logs, first.failed, first.files, first.notes) == ("read!4\n", False, [], [])
    second = await world.run(container, "import os; os.makedirs('a/b'); open('a/b/out.txt', 'w').write(x * 2); x")
    assert second.logs == "'1,2\\n'\n" and [each.filename for each in second.files] == ["a/b/out.txt"]
    assert second.files[0].purpose == "assistant"
    assert await world.files(container) == {"in.csv": b"1,2\n", "a/b/out.txt": b"1,2\n1,2\n"}


async def test_files_of_clients_and_of_code_are_the_same_ones(world: World) -> None:
    container = await world.container()
    await world.put(container, "a.txt", b"one")
    assert (await world.run(container, "print(open('a.txt').read())")).logs == "one\n"
    await world.put(container, "a.txt", b"two")
    assert (await world.run(container, "print(open('a.txt').read())")).logs == "two\n"
    await world.run(container, "import os; os.remove('a.txt'); open('.hidden', 'w').write('x')")
    assert await world.files(container) == {}


async def test_an_error_is_told_with_the_lines_of_the_code(world: World) -> None:
    outcome = await world.run(await world.container(), "def half(x):\n    return x / 0\n\nprint('begun')\nhalf(1)")
    assert outcome.failed
    assert outcome.logs.splitlines()[0] == "begun"
    assert "return x / 0" in outcome.logs and "guest.py" not in outcome.logs
    assert outcome.logs.endswith("ZeroDivisionError: division by zero\n")


async def test_code_that_takes_too_long_loses_its_variables_and_no_files(world: World) -> None:
    container = await world.container()
    await world.run(container, "x = 1; open('kept', 'w').write('x')")
    (pid,) = world.containers.pids
    stopped = await world.run(container, "import time; time.sleep(3600)", timeout_s=0.5)
    assert stopped.failed and stopped.logs == "The code was stopped after 0.5 s."
    assert not lives(pid)
    after = await world.run(container, "print(open('kept').read(), 'x' in globals())")
    assert after.logs == "x False\n" and "are gone" in after.notes[0]


TOO_MANY_FILES = """
import json, os
reply = {"logs": "", "failed": False, "processor_s": 0, "removed": [], "files": [[f"{n}", 0] for n in range(201)]}
head = json.dumps(reply).encode()
for each in range(3, 9):
    try:
        os.write(each, len(head).to_bytes(8, "big") + head)
    except OSError:
        pass
"""


@pytest.mark.parametrize(
    "code",
    [
        "import os; os._exit(3)",
        "import os\nfor each in range(3, 9):\n try: os.write(each, b'\\xff' * 16)\n except OSError: pass",
        "import ctypes; ctypes.string_at(0)",
        TOO_MANY_FILES,
    ],
    ids=["exit", "false replies", "fault", "more files than a call may write"],
)
async def test_an_interpreter_that_ends_is_told_and_replaced(world: World, code: str) -> None:
    container = await world.container()
    ended = await world.run(container, code)
    assert ended.failed and ended.logs.startswith("The interpreter ended: ")
    assert (await world.run(container, "1 + 1")).logs == "2\n"


async def test_text_and_names_that_are_not_utf8_cost_no_variables(world: World) -> None:
    made = await world.container()
    code = "a = 1\nopen(b'/mnt/data/\\xff.txt', 'w').close()\nopen('/mnt/data/b', 'w').close()\nprint('\\ud800')"
    told = await world.run(made, code)
    assert not told.failed and told.logs == "\\ud800\n\\udcff.txt is not kept: its name is not UTF-8.\n"
    assert (await world.run(made, "a")).logs.startswith("1\n") and list(await world.files(made)) == ["b"]


async def test_memory_is_bounded_and_the_interpreter_goes_on(world: World) -> None:
    container = await world.container()
    outcome = await world.run(container, "x = 1\nbytearray(2**30)")
    assert outcome.failed and "MemoryError" in outcome.logs
    assert (await world.run(container, "x")).logs == "1\n"


async def test_output_and_files_without_end_are_cut(world: World) -> None:
    container = await world.container()
    outcome = await world.run(container, "for _ in range(10_000): print('x' * 100)")
    assert len(outcome.logs) < 101_000 and outcome.logs.endswith("[output cut off here]")
    full = await world.run(container, "for n in range(9): open(f'{n}.bin', 'wb').write(bytes(2**20))")
    assert full.failed and "No space left" in full.logs
    assert sum(map(len, (await world.files(container)).values())) <= 4 * 2**20


async def test_another_process_that_goes_on_starts_from_the_files(world: World) -> None:
    container, other = await world.container(), world.process()
    await world.run(container, "x = 1; open('a', 'w').write('1')")
    try:
        there = await world.run(container, "print('x' in globals(), open('a').read())", of=other)
        assert there.logs == "False 1\n" and "are gone" in there.notes[0]
        back = await world.run(container, "print('x' in globals())")
        assert back.logs == "False\n" and "are gone" in back.notes[0]
    finally:
        await other.stop()


async def test_the_interpreter_that_is_idle_longest_makes_room(world: World) -> None:
    few = world.process(code_containers=2)
    first, second = await world.container(), await world.container()
    try:
        await world.run(first, "x = 1", of=few)
        (pid,) = few.pids
        await world.run(second, "x = 2", of=few)  # a tenant has half of two
        assert not lives(pid) and len(few.pids) == 1
        assert "are gone" in (await world.run(first, "1", of=few)).notes[0]
    finally:
        await few.stop()


async def test_an_interpreter_whose_code_has_ended_makes_room_for_who_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, run = world.process(code_containers=2), Interpreter.run
    begun, go_on, waits = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def held(self: Interpreter, code: str) -> CodeReply:
        begun.set()
        await go_on.wait()
        return await run(self, code)

    acquire = few._places.acquire

    async def noted(tenant: str) -> None:
        waits.set()
        await acquire(tenant)

    monkeypatch.setattr(Interpreter, "run", held)
    monkeypatch.setattr(few._places, "acquire", noted)
    try:
        running = [asyncio.create_task(world.run(await world.container(), "1", of=few))]
        await begun.wait()
        running.append(asyncio.create_task(world.run(await world.container(), "2", of=few)))
        await waits.wait()
        go_on.set()
        async with asyncio.timeout(GENEROUS_S):
            assert [outcome.logs for outcome in await asyncio.gather(*running)] == ["1\n", "2\n"]
        assert len(few.pids) == 1
    finally:
        await few.stop()


async def test_a_cancelled_call_and_the_end_leave_nothing_running(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, run = asyncio.Event(), Interpreter.run

    async def noted(self: Interpreter, code: str) -> CodeReply:
        asked.set()
        return await run(self, code)

    container = await world.container()
    await world.run(container, "x = 1")
    monkeypatch.setattr(Interpreter, "run", noted)
    (pid,) = world.containers.pids
    running = asyncio.create_task(world.run(container, "import time; open('on', 'w'); time.sleep(3600)"))
    await asked.wait()
    running.cancel()
    await asyncio.wait([running])
    assert not lives(pid)
    await world.run(container, "x = 1")
    (pid,) = world.containers.pids
    await world.containers.stop()
    assert not lives(pid) and world.containers.pids == []


SERVER = """
import asyncio, sys
from pathlib import Path
from kvarn.config.platform import StoreConfig
from kvarn.config.sandbox import SandboxConfig
from kvarn.config.schema import KvarnConfig
from kvarn.store.engine import Store
from kvarn.store.owner import Owner
from kvarn.tools.code_interpreter.containers import Containers

async def main(url, folder, organization, project, container, code):
    store = Store.open(KvarnConfig(store=StoreConfig(url=url), data_dir=folder))
    store.is_prepared = True
    containers = Containers(store, SandboxConfig(code_files_mib=4), Path(folder))
    await containers.run(Owner(organization, project), container, "x = 1; open('kept', 'w').write('1')", 600)
    print("begun", flush=True)
    await containers.run(Owner(organization, project), container, code, 600)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_killed_server_leaves_nothing_running_and_the_files_of_calls_that_ended(
    world: World, database_url: str, tmp_path: Path
) -> None:
    container = await world.container()
    code = "import time; open('half', 'w').write('2'); time.sleep(3600)"
    named = (world.owner.organization_id, world.owner.project_id, container)
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, database_url, str(tmp_path), *named, code, stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None and await server.stdout.readline() == b"begun\n"
    running = children(server.pid)
    assert len(running) == 3
    server.kill()
    await server.wait()
    await until(lambda: not any(map(lives, running)))
    after = await world.run(container, "print(open('kept').read(), 'x' in globals())")
    assert after.logs == "1 False\n" and "are gone" in after.notes[0]
    assert list(await world.files(container)) == ["kept"]


async def test_deleted_and_strangers_containers_are_not_there(world: World) -> None:
    container = await world.container()
    with pytest.raises(NotFoundError):
        await world.containers.run(Owner(world.owner.organization_id, "proj_other"), container, "1", GENEROUS_S)
    await world.run(container, "open('a', 'w').write('1')")
    await delete_container(world.store, world.owner, container)
    with pytest.raises(NotFoundError, match="no container"):
        await world.run(container, "1")


async def test_no_network_and_no_files_of_the_server(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVARN_API_KEY", "secret")
    outcome = await world.run(
        await world.container(),
        f"""
import os, socket, subprocess, urllib.request
for attempt in (
    lambda: urllib.request.urlopen("http://127.0.0.1:8000"),
    lambda: socket.create_connection(("169.254.169.254", 80)),
    lambda: subprocess.run(["id"]),
    lambda: open("/etc/passwd"),
    lambda: open({str(Path(__file__))!r}),
    lambda: open("/proc/self/environ"),
    lambda: os.environ["KVARN_API_KEY"],
):
    try:
        print("did", attempt())
    except (OSError, KeyError):
        pass
""",
    )
    assert (outcome.logs, outcome.failed) == ("", False), os.linesep + outcome.logs
