"""The process that renders chat templates: its limits, its end, its restart."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from kvarn.sandbox.process import SandboxLimits
from kvarn.text.chat_template import ChatTemplate
from kvarn.text.errors import ChatTemplateError, PromptTooLongError, TemplateLimitError

LIMITS = SandboxLimits(timeout_s=60.0, memory_bytes=128 * 1024 * 1024)
SHORT = SandboxLimits(timeout_s=2.0, memory_bytes=128 * 1024 * 1024)
"""For what passes the limit: only that waits for it."""
FOR_EVER = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = (
    "{% set all = namespace(text='x') %}{% for i in range(99) %}{% set all.text = all.text ~ all.text %}{% endfor %}"
)
ECHO = "{% if wait %}" + FOR_EVER + "{% endif %}{{ messages[0].content }}"

Make = Callable[..., ChatTemplate]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncGenerator[Make, None]:
    made: list[ChatTemplate] = []

    def template(source: str, limits: SandboxLimits = LIMITS) -> ChatTemplate:
        made.append(ChatTemplate.load(tmp_path, "{# #}" + source, limits))
        return made[-1]

    yield template
    for each in made:
        await each.close()


async def render(chat: ChatTemplate, text: str = "hi", **variables: object) -> str:
    return await chat.render(chat.request([{"role": "user", "content": text}], variables=variables))


def pid_of(chat: ChatTemplate) -> int | None:
    """Of the one process that a single tenant has."""
    return next(iter(chat.processes.pids), None)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until_busy(pid: int) -> None:
    """Wait until a process has computed for longer than its start takes."""

    def ticks() -> int:
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))

    began, deadline = ticks(), time.monotonic() + 60
    while ticks() < began + 30:
        assert time.monotonic() < deadline, f"process {pid} does nothing"
        await asyncio.sleep(0.02)


def until_gone(pid: int, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


async def test_the_error_names_the_limit_and_the_next_chat_is_rendered(make: Make) -> None:
    chat = make(ECHO, SHORT)
    with pytest.raises(TemplateLimitError, match=r"cannot render .* within 2 s \(gateway.client_work_timeout_s\)"):
        await render(chat, wait=True)
    with pytest.raises(TemplateLimitError, match=r"cannot render .* in 128 MiB of memory \(gateway.client_work_memory"):
        await render(make(DOUBLING))


@pytest.mark.parametrize(
    "source",
    [
        "{{ 10 ** (10 ** 10) }}",  # worked out while it is compiled
        "{{ 'x' * 10 ** 10 }}",
        "{{ 'x' * 10 ** 8 * 10 }}",
        "{{ a" + ".a" * 400_000 + " }}",
        "{{ x }}" * 140_000,
        "{% if x %}" * 10_000 + "{% endif %}" * 10_000,
        "{{ " + "(" * 10_000 + "1" + ")" * 10_000 + " }}",
        "{{ " + "[" * 150 + "]" * 150 + " }}",
        "{{ " + "-" * 100_000 + "1 }}",
        "{{ 1" + " + 1" * 100_000 + " }}",
        "{% for x in y %}" * 30 + "{% endfor %}" * 30,
        "{{ '" + "x" * 2**20 + "' }}",
    ],
    ids=lambda source: source[:20],
)
async def test_compiling_is_bounded_too(make: Make, source: str) -> None:
    began = time.monotonic()
    with pytest.raises(ChatTemplateError, match=r"not valid|be compiled|longer than|nest|cannot render"):
        await render(make(source, SHORT))
    assert time.monotonic() - began < 60


def test_a_source_of_any_length_is_not_even_read(tmp_path: Path) -> None:
    path = tmp_path / "chat_template.jinja"
    path.touch()
    os.truncate(path, 40 * 2**30)  # a sparse file
    with pytest.raises(ChatTemplateError, match="longer than 1048576 bytes"):
        ChatTemplate.load(tmp_path)


async def test_a_chat_that_was_rendered_in_time_counts_though_the_event_loop_was_held_up(make, monkeypatch):
    chat = make(ECHO)
    await chat.start()
    pid = pid_of(chat)
    running = asyncio.create_task(render(chat))
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + 1.5 * LIMITS.timeout_s)
    assert await running == "hi"
    assert pid_of(chat) == pid


async def test_the_process_does_not_inherit_the_servers_secrets(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVARN_API_KEY", "secret")
    chat = make(ECHO)
    await chat.start()
    with open(f"/proc/{pid_of(chat)}/environ", "rb") as environment:  # noqa: ASYNC230, PTH123
        assert b"secret" not in environment.read()


async def test_a_prompt_may_have_so_many_characters(make: Make) -> None:
    chat = make("{{ 'x' * 10000 }}{{ messages[0].content }}")
    messages = [{"role": "user", "content": ""}]
    assert len(await chat.render(chat.request(messages, max_characters=10_000))) == 10_000
    with pytest.raises(PromptTooLongError, match="more than 9999 characters"):
        await chat.render(chat.request(messages, max_characters=9999))
    messages = [{"role": "user", "content": "y" * 10_000}]
    assert len(await chat.render(chat.request(messages, max_characters=1))) == 20_000


async def test_the_text_of_an_error_is_bounded(make: Make) -> None:
    with pytest.raises(ChatTemplateError) as caught:
        await render(make("{{ raise_exception('x' * n) }}"), n=10**7)
    assert len(str(caught.value)) == 2000


async def test_a_process_that_is_killed_is_started_again(make: Make) -> None:
    chat = make(ECHO)
    assert await render(chat) == "hi"
    first = pid_of(chat)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert await render(chat) == "hi"  # whether or not its end has been noticed
    assert pid_of(chat) not in (None, first)


async def test_a_chat_whose_process_is_killed_is_rendered_by_another_one(make: Make) -> None:
    chat = make(ECHO)
    await chat.start()
    pids = [pid_of(chat)]
    running = asyncio.create_task(render(chat, wait=True))
    for _ in range(2):
        pid = pid_of(chat)
        assert pid is not None
        await until_busy(pid)
        assert not running.done()
        os.kill(pid, signal.SIGKILL)
        until_gone(pid)
        while pid_of(chat) in (pid, None) and not running.done():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        pids.append(pid_of(chat))
    with pytest.raises(ChatTemplateError, match="was ended by SIGKILL"):
        await running
    assert len(set(pids)) == 3
    assert await render(chat) == "hi"


async def test_a_chat_that_is_given_up_leaves_no_reply_to_the_next_one(make: Make) -> None:
    chat = make(ECHO)
    await chat.start()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await render(chat, "given up", wait=True)
        assert await render(chat, "the next") == "the next"


async def test_no_process_is_left_when_it_is_closed(make: Make) -> None:
    chat = make(ECHO)
    await chat.start()
    pid = pid_of(chat)
    assert pid is not None and alive(pid)
    await chat.close()
    assert not alive(pid)
    await chat.close()


PARENT = """
import asyncio, sys
from pathlib import Path
from kvarn.text.chat_template import ChatTemplate
from kvarn.sandbox.process import SandboxLimits

async def main():
    chat = ChatTemplate.load(Path(sys.argv[1]), sys.argv[2], SandboxLimits(timeout_s=2))
    await chat.start()
    print(*chat.processes.pids, flush=True)
    rendering = asyncio.create_task(chat.render(chat.request([])))
    await asyncio.sleep(0)
    print("asked", flush=True)
    await rendering
    print("rendered", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("source", ["{{ messages }}", "{{ messages }}" + FOR_EVER], ids=["idle", "busy"])
def test_it_dies_with_its_parent_also_when_that_is_killed(tmp_path: Path, source: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), source], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as lines:
        pid = int(lines.readline())
        assert lines.readline() == "asked\n"
        if "for" not in source:
            assert lines.readline() == "rendered\n"
            assert alive(pid)
        parent.kill()
        parent.wait()
    until_gone(pid)
