"""What limits and budgets add to a request, in microseconds: in the process, and over a private Redis on this machine.

    python -m benchmarks.limits --rounds 5

Each request is under six bounds: RPM and TPM of key, project and organisation; and, with `--budget`, under a hard limit
of its organisation's tokens too, measured in turns with and without. Measured is what a request waits for before the
engine is asked, and that together with settling. `--clients` ask at the same time, each pausing for about
`--pause-ms` after every request: what is measured is a request's wait, not how many there can be.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count, product

from kvarn.config.platform import LimitsConfig
from kvarn.limits.limiter import ActiveReservation, Limiter
from kvarn.limits.rules import limits_of
from kvarn.limits.types import Reservation
from kvarn.observe.limits import LimitMetrics
from kvarn.store.models import Budget
from kvarn.store.owner import LimitRule, Owner, Principal

HOLDERS = ("org-1", "proj_1", "key_1")
RULES = tuple(LimitRule(holder, requests_per_minute=10**9, tokens_per_minute=10**12) for holder in HOLDERS)
PRINCIPAL = Principal(Owner("org-1", "proj_1"), key_id="key_1", limits=RULES)
BUDGET = Budget(
    id="budget-1", organization_id="org-1", holder_id="org-1", unit="tokens", period="month", hard_limit=10**12
)
_numbers = count()


async def one(limiter: Limiter, config: LimitsConfig) -> tuple[float, float]:
    """Seconds of taking in, and of both taking in and settling."""
    work_id = f"use_{next(_numbers):032x}"
    began = time.perf_counter()
    _, budgets = limiter.budgets.limits(HOLDERS[:2], 300, 0, time.time())
    limits = *budgets, *limits_of(PRINCIPAL, "m", config)
    hold = await limiter.reserve(Reservation(work_id, "org-1", limits, 300))
    taken = time.perf_counter()
    assert isinstance(hold, ActiveReservation)
    hold.settle(200)
    return taken - began, time.perf_counter() - began


async def measure(
    url: str | None, budgets: Sequence[Budget], clients: int, requests: int, pause_s: float
) -> tuple[float, float]:
    """Medians, in microseconds, with so many clients at once."""
    config = LimitsConfig(redis_url=url, timeout_s=5, when_away="closed")
    limiter = Limiter(config, LimitMetrics())
    limiter.budgets.replace(budgets, {}, time.time())
    await limiter.start()

    async def client() -> list[tuple[float, float]]:
        measured = []
        for _ in range(requests // clients):
            await asyncio.sleep(random.uniform(0.5, 1.5) * pause_s)
            measured.append(await one(limiter, config))
        return measured

    await one(limiter, config)
    parts = await asyncio.gather(*[client() for _ in range(clients)])
    taken, settled = zip(*[each for part in parts for each in part], strict=True)
    assert not limiter.away, "Redis did not keep up"
    await limiter.stop()
    return 1e6 * statistics.median(taken), 1e6 * statistics.median(settled)


@contextmanager
def private_redis() -> Iterator[str]:
    """A Redis of its own; its URL."""
    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit("redis-server is not installed: apt-get install redis-server, or measure with --redis none")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", tempfile.gettempdir()]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


def report(name: str, clients: int, rounds: list[tuple[float, float]]) -> None:
    """One line: the median round, and the spread."""
    taken = sorted(each[0] for each in rounds)
    both = statistics.median(each[1] for each in rounds)
    middle = statistics.median(taken)
    spread = f"rounds {taken[0]:.1f} to {taken[-1]:.1f}"
    print(f"{name:<20} {clients:>4} clients: {middle:7.1f} µs before the engine ({spread})")
    print(f"{'':<20} {'':>4}          {both:7.1f} µs with settling")


def main() -> None:
    """Measure all, in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="1,32", help="at once")
    parser.add_argument("--requests", type=int, default=100, help="of each client")
    parser.add_argument("--pause-ms", type=float, default=50.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--redis", choices=("own", "none"), default="own")
    parser.add_argument("--budget", action="store_true", help="measure with a budget too")
    arguments = parser.parse_args()
    counts = [int(number) for number in arguments.clients.split(",")]
    if arguments.redis == "none":
        measure_all({"in process": None}, counts, arguments)
        return
    with private_redis() as url:
        measure_all({"in process": None, "Redis": url}, counts, arguments)


def measure_all(places: dict[str, str | None], counts: list[int], arguments: argparse.Namespace) -> None:
    """All places and numbers of clients, in turns."""
    budgets: dict[str, list[Budget]] = {"": [], ", budget": [BUDGET]} if arguments.budget else {"": []}
    figures: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for _ in range(arguments.rounds):
        for (name, url), clients, (under, rules) in product(places.items(), counts, budgets.items()):
            requests, pause_s = clients * arguments.requests, arguments.pause_ms / 1000
            measured = asyncio.run(measure(url, rules, clients, requests, pause_s))
            figures.setdefault((name + under, clients), []).append(measured)
    for (name, clients), rounds in figures.items():
        report(name, clients, rounds)


if __name__ == "__main__":
    main()
