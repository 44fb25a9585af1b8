"""Chat templates are programs that come with a checkpoint: they run in a process whose time and memory are bounded."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kvarn.text.errors import ChatTemplateError, PromptTooLongError, TemplateLimitError

_WORKER = Path(__file__).with_name("template_worker.py")

_OUT_OF_MEMORY = 3
"""Exit status of the worker; see there."""

_START_TIMEOUT_S = 60.0
"""For the interpreter and its imports: a tenth of a second, unless the machine is very busy."""

_ENVIRONMENT = frozenset({"PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "TZ", "LANG"})
"""Variables that the process inherits: where Python and its libraries are, and the time zone for templates."""

_BUFFER_BYTES = 1024 * 1024

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """What compiling the templates of a checkpoint, or rendering one of them once, may take."""

    timeout_s: float = 5.0
    """Seconds."""
    memory_bytes: int = 512 * 1024 * 1024
    """Address space of the process, 25 MiB of which are its own."""


class TemplateProcess:
    """Renders the templates of one checkpoint, one conversation at a time: callers take turns.

    The process is started when it is needed, and killed when it passes a limit. Belongs to one event loop.
    """

    def __init__(self, sources: Mapping[str, str], limits: TemplateLimits) -> None:
        self._sources = dict(sources)
        self._limits = limits
        self._process: asyncio.subprocess.Process | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process's id; None where it does not run."""
        return None if self._process is None else self._process.pid

    async def render(self, request: bytes) -> str:
        """The text of a request that `ChatTemplate.request` made.

        Raises:
            ChatTemplateError: The template refuses the messages, is broken, or passes a limit.
            PromptTooLongError: It writes more than the request allows.
        """
        try:
            return await self._start_and_render(request)
        except _EndedError as error:
            _log.warning("%s It is started again.", error)
        return await self._start_and_render(request)

    async def close(self) -> None:
        """Kill the process; nothing is rendered from here on. Idempotent."""
        self._closed = True
        await self._kill()

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):  # it has ended
                process.kill()
            await process.wait()

    async def _start_and_render(self, request: bytes) -> str:
        await self.start()
        return await self._exchange(request, self._limits.timeout_s, "render these messages")

    async def start(self) -> None:
        """Start the process and compile the templates; does nothing where that is done.

        Raises:
            ChatTemplateError: A template is not valid, or passes a limit while it is compiled.
        """
        if self._process is not None and self._process.returncode is None:
            return
        if self._closed:
            raise ChatTemplateError("The server is shutting down: no more chats are rendered.")
        command = [sys.executable, "-P", str(_WORKER), str(self._limits.memory_bytes), str(self._limits.timeout_s)]
        # A session of its own: Ctrl-C in the terminal reaches the gateway only, which then lets requests finish.
        self._process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_BUFFER_BYTES,
            start_new_session=True,
            # None of the server's secrets; what the interpreter needs.
            env={name: value for name, value in os.environ.items() if name in _ENVIRONMENT},
        )
        try:
            await self._exchange(b"", _START_TIMEOUT_S, "start")
            await self._exchange(json.dumps({"sources": self._sources}).encode(), self._limits.timeout_s, "be compiled")
        except BaseException:
            await self._kill()
            raise

    async def _exchange(self, request: bytes, timeout_s: float, what: str) -> str:
        """Send a request, if there is one, and read a reply. Where there is none the process is gone."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            # The process ends itself at the time limit: were it this side's clock, a render that is done would count as
            # late whenever the event loop was held up.
            async with asyncio.timeout(2 * timeout_s):
                if request:
                    process.stdin.write(len(request).to_bytes(8, "big"))
                    process.stdin.write(request)
                    await process.stdin.drain()
                size = int.from_bytes(await process.stdout.readexactly(8), "big")
                reply = await process.stdout.readexactly(size)
        except TimeoutError:
            await self._kill()
            raise _time_error(what, timeout_s, request) from None
        except (OSError, asyncio.IncompleteReadError):
            self._process = None
            status = await process.wait()  # not killed first: that may take the status from asyncio
            if status == -signal.SIGALRM:
                raise _time_error(what, timeout_s, request) from None
            if status == _OUT_OF_MEMORY:
                mib = self._limits.memory_bytes // 2**20
                raise _limit_error(what, f"in {mib} MiB of memory (gateway.template_memory_bytes)") from None
            raise _EndedError(status) from None
        except asyncio.CancelledError:
            await self._kill()  # its reply would be taken for that to the next request
            raise
        kind, text = reply[:1], reply[1:].decode("utf-8", "surrogatepass")
        if kind == b"-":
            raise ChatTemplateError(text)
        if kind == b">":
            raise PromptTooLongError(text)
        return text


def _time_error(what: str, timeout_s: float, request: bytes) -> TemplateLimitError:
    setting = " (gateway.template_timeout_s)" if request else ""
    return _limit_error(what, f"within {timeout_s:g} s{setting}")


def _limit_error(what: str, limit: str) -> TemplateLimitError:
    error = TemplateLimitError(f"The chat template cannot {what} {limit}.")
    _log.warning("%s", error)
    return error


class _EndedError(ChatTemplateError):
    """The process ended by itself, or somebody else killed it."""

    def __init__(self, status: int) -> None:
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        super().__init__(f"The process that renders the chat template {how}.")
