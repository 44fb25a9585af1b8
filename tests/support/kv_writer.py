"""Writes KV blocks until it is killed, or until its files may not grow: each line on standard input starts one.

    python kv_writer.py

A line is a directory, the number of the first block, and a limit of the size of files in bytes (0: none). The writer is
forked from a process that has imported everything. It says the number of each block that is on disk, in order.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from kv_blocks import contents_of, name_of, open_disk, open_store, transfer

COUNT = 100_000


def write_on(directory: Path, first: int, limit: int) -> None:
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    disk = open_disk(directory, blocks=5000)
    tiers = open_store(disk)
    told = first
    for number in range(first, first + (100 if limit else COUNT)):
        tiers.store([transfer(number)], [[memoryview(contents_of(number))]])
        if limit:
            tiers.flush(10.0)
        while told < number and name_of(told) in disk:
            _tell(str(told))
            told += 1
    stats = tiers.stats()["disk"]
    _tell(f"end {stats.blocks} {stats.dropped_total.get('write', 0)}")


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    for line in sys.stdin:
        directory, first, limit = line.split()
        child = os.fork()
        if child == 0:
            try:
                write_on(Path(directory), int(first), int(limit))
            finally:
                os._exit(0)
        _tell(f"pid {child}")
        os.waitpid(child, 0)
        _tell("ended")


if __name__ == "__main__":
    main()
