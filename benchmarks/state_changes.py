"""Upgrade, downgrade, backup and restore of a database that is written to.

    python -m benchmarks.state_changes --rows 1000000
    python -m benchmarks.state_changes --rows 1000000 --url postgresql://kvarn@127.0.0.1/empty

Writers enter usage events one after the other, in transactions of their own, as a gateway of an older release does.
Printed is what each change took, how many writes ended meanwhile, the slowest of them, and how many failed. The
database of the URL is emptied first.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path

from sqlalchemy import text

from kvarn.backups.restore import restore
from kvarn.backups.write import make_backup
from kvarn.config.schema import KvarnConfig
from kvarn.store import migrate
from kvarn.store.engine import Store
from kvarn.store.errors import StoreError

OLDEST = "0011"
COLUMNS = (
    "id, request_id, organization_id, project_id, endpoint, model, model_version, adapter, route, replica,"
    " service_tier, outcome, input_tokens, cached_tokens, output_tokens, started_at, finished_at,"
    " duration_ms, cost, currency"
)
VALUES = (
    "'org-a', 'proj-a', '/v1/chat/completions', 'tiny', '', '', '', '', 'default', 'finished', 1000, 0, 200,"
    " 1790000000, 1790000001, 900, 1000, 'usd'"
)
FILL = {
    True: f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :rows) INSERT INTO usage_events"
    f" ({COLUMNS}) SELECT 'use_' || i, 'req-' || i, {VALUES} FROM n",
    False: f"INSERT INTO usage_events ({COLUMNS})"
    f" SELECT 'use_' || i, 'req-' || i, {VALUES} FROM generate_series(1, CAST(:rows AS bigint)) i",
}
WRITE = f"INSERT INTO usage_events ({COLUMNS}) VALUES (:id, :id, {VALUES})"


class Writers:
    """Write until they are stopped."""

    def __init__(self, store: Store, count: int) -> None:
        self.took_s: list[float] = []
        self.failures: list[str] = []
        self._store = store
        self._names = itertools.count()
        self._stopping = False
        self._tasks = [asyncio.create_task(self._write()) for _ in range(count)]

    async def _write(self) -> None:
        while not self._stopping:
            began, name = time.perf_counter(), f"load-{next(self._names)}"
            try:
                async with self._store.transaction() as session:
                    await session.execute(text(WRITE), {"id": name})
            except StoreError as error:
                self.failures.append(str(error))
            self.took_s.append(time.perf_counter() - began)

    async def during(self, what: str, change: Awaitable[object]) -> None:
        """Print how a change went for those who write."""
        await asyncio.sleep(1)
        self.took_s.clear()
        self.failures.clear()
        began = time.perf_counter()
        await change
        took_s = time.perf_counter() - began
        await asyncio.sleep(0.2)  # those that waited for it end
        worst_ms = 1000 * max(self.took_s, default=0.0)
        print(f"| {what} | {took_s:.2f} | {len(self.took_s)} | {worst_ms:.0f} | {len(self.failures)} |")

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)


async def measure(url: str, rows: int, writers: int, folder: Path) -> None:
    config = KvarnConfig.model_validate({"store": {"url": url, "timeout_s": 30}})
    store, load = Store.open(config), Store.open(config)
    load.is_prepared = True
    await migrate.upgrade(store)
    await migrate.downgrade(store, OLDEST)
    async with store.migrating() as connection:
        await connection.execute(text("DELETE FROM usage_events"))
        await connection.execute(text(FILL[store.is_sqlite]), {"rows": rows})
    print("| change | seconds | writes | slowest, ms | failed |\n|---|---|---|---|---|")
    working = Writers(load, writers)
    newest = migrate.head()
    await working.during(f"schema {OLDEST} to {newest}", migrate.upgrade(store))
    await working.during(f"schema {newest} to {migrate.RELEASES['0.1']}", migrate.downgrade(store, "0.1"))
    await working.during(f"schema {migrate.RELEASES['0.1']} to {newest}", migrate.upgrade(store))
    backup = folder / "backup.tar"
    keys = folder / "none"
    await working.during("backup", make_backup(store, backup, prompt_keys=keys))
    await working.stop()
    await load.close()
    size = backup.stat().st_size / 1e6
    began = time.perf_counter()
    await restore(store, backup, folder=folder, prompt_keys=keys, force=True)
    print(
        f"\n{rows} events, {writers} writers; backup of {size:.0f} MB, restored in {time.perf_counter() - began:.2f} s"
    )
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="an empty database; default: SQLite in a temporary folder")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--writers", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.url or f"sqlite:///{folder}/kvarn.db"
        asyncio.run(measure(url, options.rows, options.writers, Path(folder)))


if __name__ == "__main__":
    main()
