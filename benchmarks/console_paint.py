"""First paint of the console's pages, with many requests kept.

    python -m benchmarks.console_paint                  # 100,000 kept requests, five visits of each view

Needs node, `make console-check` and Chromium (CHROMIUM names another). The server is a real one on SQLite; a visit is a
new browser profile without cache, then the same view again. `shown` is when the view has its data and is drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.server import ROOT, complete, free_port, kvarn_serve, running

VIEWS = ("overview", "requests?range=24h", "requests?range=24h&order=slowest", "requests?range=24h&status=5xx")
COLUMNS = {
    "id": "'r' || n",
    "request_id": "'req-r' || n",
    "organization_id": "'org-default'",
    "project_id": "(SELECT min(id) FROM projects)",
    "session": "'s-' || (n / 10)",
    "end_user": "'user-' || (n % 1000)",
    "model": "'model-' || (n % 3)",
    "model_version": "'v1'",
    "adapter": "''",
    "replica": "'model'",
    "endpoint": "'/v1/chat/completions'",
    "status": "CASE WHEN n % 500 = 3 THEN 500 ELSE 200 END",
    "outcome": "CASE WHEN n % 500 = 3 THEN 'failed' ELSE 'finished' END",
    "error_code": "''",
    "reason": "CASE WHEN n % 500 = 3 THEN 'error' ELSE 'ordinary' END",
    "started_us": ":now - n * 100000",
    "total_us": "n * 7919 % 5000000",
    "ttft_us": "n * 31 % 900000",
    "input_tokens": "n % 4000",
    "cached_tokens": "0",
    "output_tokens": "n % 300",
    "cost": "n",
    "kept_bytes": "1500",
}


def fill(database: Path, rows: int) -> None:
    """Write kept requests of the last hours, ten a second."""
    numbers = "WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < :rows - 1)"
    statement = (
        f"INSERT INTO kept_requests ({', '.join(COLUMNS)}) {numbers} SELECT {', '.join(COLUMNS.values())} FROM numbers"
    )
    with sqlite3.connect(database, timeout=60) as connection:
        connection.execute(statement, {"rows": rows, "now": int(time.time() * 1e6)})
    connection.close()


def visits(url: str, rounds: int) -> list[dict[str, Any]]:
    """Measured visits of every view. Raises SystemExit where the browser fails."""
    line = json.dumps({"scenario": "bench/paint", "server": url, "given": {"views": VIEWS, "rounds": rounds}}) + "\n"
    node = subprocess.run(
        ["node", "e2e/run.mjs"], cwd=ROOT / "console", input=line, capture_output=True, text=True, check=False
    )
    if node.returncode:
        raise SystemExit(node.stderr)
    outcome = json.loads(node.stdout)
    if not outcome["ok"]:
        raise SystemExit(outcome["error"])
    told: list[dict[str, Any]] = outcome["told"]
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="requests kept")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    if not (shutil.which("node") and (ROOT / "console/node_modules/playwright-core").is_dir()):
        raise SystemExit("node or the console's packages are missing: make console-check")
    with tempfile.TemporaryDirectory() as folder:
        data, port = Path(folder) / "data", free_port()
        command = kvarn_serve(Path(folder) / "kvarn.yaml", port, "m", "kvarn-demo", None, {"data_dir": str(data)})
        environment = {"KVARN_DATA_DIR": str(data)}
        with running(command, port, Path(folder) / "log", probe=complete, environment=environment) as server:
            fill(data / "kvarn.db", asked.rows)
            print(f"{asked.rows:,} requests kept, {asked.rounds} visits of each view, load {os.getloadavg()[0]:.1f}")
            report(visits(server.url, asked.rounds))


def report(measured: list[dict[str, Any]]) -> None:
    print(f"{'view':36} {'cache':6} {'first paint ms':>15} {'shown ms':>9} {'requests':>9} {'bytes':>8} {'rows':>5}")
    for view in VIEWS:
        for cached in (False, True):
            of = [each for each in measured if (each["view"], each["cached"]) == (view, cached)]
            middle = {
                name: statistics.median(each[name] for each in of) for name in of[0] if name not in ("view", "cached")
            }
            print(
                f"{view:36} {'warm' if cached else 'cold':6} {middle['paint_ms']:15.0f} {middle['shown_ms']:9.0f} "
                f"{middle['requests']:9.0f} {middle['bytes']:8.0f} {middle['rows']:5.0f}"
            )


if __name__ == "__main__":
    main()
