"""Run a job from synchronous code: event loop, Ctrl-C, progress on the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Callable

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from kvarn.bench.driver import Job, Outcome, Run, RunProgress
from kvarn.bench.http import HttpBrokenError, HttpClient, HttpConnectError, HttpProtocolError
from kvarn.bench.target import Target
from kvarn.clock import SYSTEM_CLOCK

PLAIN_INTERVAL_S = 5.0
"""Seconds between progress lines where the output is no terminal."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""End a run cleanly, with what is known; the second of them ends the process."""


class BenchError(Exception):
    """The run cannot start; the message says what to do."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def run_job(job: Job, console: Console | None = None) -> Outcome:
    """Run a job to its end, or to Ctrl-C, and say what happened.

    The first Ctrl-C (or SIGTERM) stops sending, gives up what is in flight and returns what is known; a second one is
    met by the caller's own handler. `console` shows progress; None is silent.

    Raises:
        BenchError: The server cannot be reached or refuses the warm-up requests.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_session(job, console))


def first_model(target: Target) -> str:
    """The first model the server lists.

    Raises:
        BenchError: It lists none, or does not answer.
    """
    received = bytearray()

    async def ask() -> int:
        client = HttpClient(target.root, target.api_key)
        path = target.path.removesuffix("chat/completions").removesuffix("completions") + "models"
        async with asyncio.timeout(target.timeout_s):
            return await client.request("GET", path, b"", lambda _now, _status, body: received.extend(body))

    try:
        status = asyncio.run(ask())
        models = msgspec.json.decode(received, type=_Models).data if status == 200 else []
    except (HttpConnectError, HttpBrokenError, HttpProtocolError, TimeoutError, ValueError) as error:
        raise BenchError(f"{target.url} does not list its models ({error}): is the server running?") from None
    if not models:
        raise BenchError(f"{target.url} lists no models (status {status}): name one with --model")
    return models[0].id


async def _session(job: Job, console: Console | None) -> Outcome:
    try:
        run = Run(job)
    except ValueError as error:
        raise BenchError(str(error)) from None
    for record in await run.warm_up():
        if record.error is not None:
            raise BenchError(f"a warm-up request failed ({record.error}): {record.message}")
    work = asyncio.create_task(run.measure())
    watcher = asyncio.create_task(_watch(run.progress, console)) if console is not None else None
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        work.cancel()
        listening.close()

    with contextlib.ExitStack() as listening:
        _listen(listening, interrupt)
        with contextlib.suppress(asyncio.CancelledError):
            await work
    if watcher is not None:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
    return run.outcome(interrupted=interrupted)


def _listen(stack: contextlib.ExitStack, interrupt: Callable[[], None]) -> None:
    """Have `interrupt` called at a stop signal until `stack` closes, which gives the signals back to whom they were."""
    if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        return  # signals reach only the main thread; there Ctrl-C is a KeyboardInterrupt
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        stack.callback(signal.signal, number, signal.getsignal(number))
        loop.add_signal_handler(number, interrupt)
        stack.callback(loop.remove_signal_handler, number)


async def _watch(progress: RunProgress, console: Console) -> None:
    if not console.is_terminal:
        started = SYSTEM_CLOCK.now()
        while True:
            await asyncio.sleep(PLAIN_INTERVAL_S)
            seconds = SYSTEM_CLOCK.now() - started
            console.print(
                f"{seconds:7.1f} s  {progress.done}/{progress.total} done  {_state(progress)}", highlight=False
            )
    columns = (
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=progress.total)
        while True:
            bar.update(task, completed=progress.done, description=_state(progress))
            await asyncio.sleep(0.25)


def _state(progress: RunProgress) -> str:
    return f"{progress.running} running  {progress.failed} failed  {progress.output_tokens} output tokens"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where the platform has it: it halves the generator's cost per chunk."""
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop
