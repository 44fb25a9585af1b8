"""Seconds that sandboxes cost: their start, files parsed in them, code run in them.

    python -m benchmarks.sandboxes README.md docs/operate/*.md
    python -m benchmarks.sandboxes --repeats 20 report.pdf table.csv

Of each file: the median of its repeats, one after the other, each in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from time import perf_counter

from kvarn.retrieval.parsing.parse import UnreadableFileError, parse
from kvarn.retrieval.types import Document
from kvarn.sandbox.bubblewrap import Program, ProgramLimits, find_bubblewrap
from kvarn.tools.code_interpreter.interpreter import Interpreter

CALLS = 100


async def _read(path: Path) -> Document:
    with path.open("rb") as file:
        return await parse(file, path.name, "")


async def timed(repeats: int, work: Callable[[], Awaitable[object]]) -> float:
    """The median of the milliseconds that some work takes."""
    took = []
    for _ in range(repeats):
        began = perf_counter()
        await work()
        took.append(1000 * (perf_counter() - began))
    return median(took)


async def measure(files: list[Path], repeats: int) -> None:
    runner = find_bubblewrap()
    print(f"{runner.binary}, {'as root' if runner.as_root else 'with user namespaces'}")
    start = await timed(repeats, lambda: runner.run(Program("this"), ProgramLimits()))
    print(f"start and end of a program       {start:8.1f} ms")

    async def begin() -> None:
        interpreter = await Interpreter.start(runner, "", memory_mib=512, files_mib=4, packages=None)
        await interpreter.run("1")
        await interpreter.close()

    print(f"first code in a container        {await timed(repeats, begin):8.1f} ms")
    interpreter = await Interpreter.start(runner, "", memory_mib=512, files_mib=4, packages=None)
    print(f"further code                     {await timed(CALLS, lambda: interpreter.run('1')):8.1f} ms")
    await interpreter.close()
    for file in files:
        try:
            document = await _read(file)
        except UnreadableFileError as error:
            print(f"{file.name}: {error}")
            continue
        took = await timed(repeats, lambda file=file: _read(file))  # type: ignore[misc]
        size = file.stat().st_size
        speed = size / took / 1e3
        print(f"{file.name[:32]:32} {took:8.1f} ms  {size / 1e6:6.2f} MB  {speed:6.1f} MB/s  {document.parser}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.files, arguments.repeats))


if __name__ == "__main__":
    main()
