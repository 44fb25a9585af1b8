"""What the ledger costs: microseconds of the gateway's thread for each request and for each count of tokens.

    python -m benchmarks.ledger --requests 20000 --rounds 5
    python -m benchmarks.ledger --store postgresql://kvarn@127.0.0.1/kvarn

`take`, `count` and `finish` are on a request's way. `write` is beside it, on the same thread: the database's share is
what the event loop spends on it, waiting not counted, and how many events a second get there.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time

from kvarn.answers.record import RequestRecord
from kvarn.answers.stages.ledger import LedgerStage
from kvarn.answers.turn import Turn
from kvarn.config.schema import KvarnConfig
from kvarn.metering.service import Metering
from kvarn.store.engine import Store
from kvarn.store.migrate import upgrade

COUNTS = 64
"""Of tokens, in each request."""


def make_turn() -> Turn:
    return Turn(
        record=RequestRecord("req-0123456789abcdef0123456789abcdef", endpoint="/v1/chat/completions"),
        model="kvarn-demo",
        model_version="0123456789abcdef",
        replica="machine/kvarn-demo",
        prompt_tokens=100,
        max_output_tokens=COUNTS,
    )


class Round:
    """One measurement: so many requests, one after the other."""

    def __init__(self, metering: Metering, requests: int) -> None:
        self._metering = metering
        self._requests = requests

    async def run(self) -> dict[str, float]:
        """Microseconds of each step."""
        turns = [make_turn() for _ in range(self._requests)]
        spent = dict[str, float]()
        waves = [turns[start : start + 64] for start in range(0, len(turns), 64)]
        taken = counted = finished = 0.0
        for wave in waves:  # 64 requests in flight at a time
            began = time.thread_time()
            for turn in wave:
                await LedgerStage(self._metering).enter(turn)
            after_take = time.thread_time()
            for turn in wave:
                turn.usage.count(prompt=100)
                for _ in range(COUNTS):
                    turn.usage.count(completion=1)
            after_count = time.thread_time()
            for turn in wave:
                turn.closing.close()
            taken += after_take - began
            counted += after_count - after_take
            finished += time.thread_time() - after_count
        bare = self._bare_counts()
        spent["take"] = 1e6 * taken / self._requests
        spent["count"] = 1e6 * counted / (self._requests * (COUNTS + 1)) - bare
        spent["finish"] = 1e6 * finished / self._requests
        return spent

    def _bare_counts(self) -> float:
        """A count that nobody watches, which the ledger is not to blame for."""
        usage = make_turn().usage
        began = time.thread_time()
        for _ in range(self._requests):
            usage.count(completion=1)
        return 1e6 * (time.thread_time() - began) / self._requests


async def written(metering: Metering) -> tuple[float, float]:
    """Microseconds of the thread for each waiting event, and events a second, until none waits."""
    writer, journal = metering._writer, metering._journal
    assert writer is not None and journal is not None
    waiting = journal.waiting
    began, thread_began = time.monotonic(), time.thread_time()
    await writer.work()
    seconds = time.monotonic() - began
    return 1e6 * (time.thread_time() - thread_began) / waiting, waiting / seconds


async def measure(arguments: argparse.Namespace, directory: str) -> None:
    url = arguments.store or f"sqlite:///{directory}/kvarn.db"
    config = KvarnConfig.model_validate({"data_dir": directory, "store": {"url": url}})
    store = Store.open(config)
    await upgrade(store)
    metering = Metering(config, store)
    metering.open()
    rounds: list[dict[str, float]] = []
    for _ in range(arguments.rounds):
        found = await Round(metering, arguments.requests).run()
        found["write"], found["events a second"] = await written(metering)
        rounds.append(found)
    for step in rounds[0]:
        values = [found[step] for found in rounds]
        unit = "" if step == "events a second" else " µs"
        print(f"{step:>16}  median {statistics.median(values):9.2f}{unit}   least {min(values):9.2f}{unit}")
    await metering.stop()
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store", help="URL of an empty database; default: a SQLite file made for this")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure(arguments, directory))


if __name__ == "__main__":
    main()
