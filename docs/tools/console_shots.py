"""Pictures of the console, with a plausible organisation under load.

Usage: python docs/tools/console_shots.py [--seconds 40]

Starts a server with the packaged model, makes tenants, keys, limits, budgets, an evaluation and a batch, asks for some
time, and takes pictures of every page in both themes and widths while the load goes on. All are in build/console-shots;
those of docs/operate/console_pages.md, which show what is seen without scrolling, are copied into
docs/operate/console.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.server import free_port, kvarn_serve, running  # noqa: E402
from docs.tools.plausible_load import MODEL, Load, furnish  # noqa: E402

ALL = ROOT / "build/console-shots"
SHOWN = ROOT / "docs/operate/console"
MAX_SHOWN_BYTES = 2_500_000
"""All pictures together."""
SECTIONS = {
    "auth": {"mode": "keys"},
    "metering": {"prices": [{"model": MODEL, "input_per_million": 0.8, "output_per_million": 3.2}]},
    "batches": {"poll_s": 0.5},
}
SETTINGS = {"dtype": "float32", "kv_cache_gib": 0.01, "engine": {"max_num_seqs": 8}}
STATES = {
    "overview": "overview?range=15m",
    "requests": "requests?status=2xx",
    "usage": "usage?range=24h",
    "plan": "plan?of=Qwen/Qwen3-8B&rate=40&apiInput=0.15&apiOutput=0.6",
}
"""Addresses of pages that show more than their plain one does."""
REGISTRY = ROOT / "console/src/pages/registry.ts"


def pages(client: httpx.Client) -> list[str]:
    """Pages of the console, `NAME=ADDRESS`, and the slowest request that was answered."""
    names = [name for name in re.findall(r'\{ name: "(\w+)"', REGISTRY.read_text()) if name != "sessions"]
    asked = {"order": "slowest", "status": "2xx", "limit": 200, "endpoint": "/v1/chat/completions"}
    listed = client.get("/console/api/requests", params=asked).raise_for_status().json()["data"]
    slowest = next(each for each in listed if each["session"])
    stores = client.get("/v1/vector_stores", params={"order": "asc"}).raise_for_status().json()["data"]
    states = STATES | {
        "knowledge": f"knowledge/{stores[0]['id']}?q=How long is the warranty of a battery",
        "tools": "tools/shop",
        "whatif": f"whatif?range=15m&replicas=2&until={int(time.time())}",
    }
    found = [f"{name}={states.get(name, name)}" for name in names]
    found.append(f"model=models/{MODEL}")
    found.append(f"request=requests/{slowest['id']}")
    found.append(f"session=sessions/{slowest['session']}")
    return found


def keep_shown() -> None:
    """Copy what docs show. Exits where that is too much."""
    SHOWN.mkdir(exist_ok=True)
    for source in sorted(ALL.glob("*.webp")):
        shutil.copy(source, SHOWN)
    size = sum(each.stat().st_size for each in SHOWN.iterdir())
    if size > MAX_SHOWN_BYTES:
        raise SystemExit(f"the pictures in {SHOWN} have {size} bytes; {MAX_SHOWN_BYTES} are allowed")


def is_ready(url: str, _: str) -> None:
    """Raise OSError where the server is not ready."""
    try:
        httpx.get(f"{url}/ready").raise_for_status()
    except httpx.HTTPError as error:
        raise OSError(str(error)) from error


def shoot(url: str, key: str, seconds: float, only: list[str] | None) -> int:
    """Furnish the server, ask for some seconds, and take the pictures; exit status of who takes them."""
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=120) as client:
        callers = furnish(client)
        with Load(url, callers):
            time.sleep(seconds)
            command = ["npm", "run", "--silent", "shots", "--", url, str(ALL), *(only or pages(client))]
            return subprocess.run(
                command, cwd=ROOT / "console", env=os.environ | {"KVARN_KEY": key}, check=False
            ).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0, help="of load before the first picture")
    parser.add_argument("--pages", nargs="*", help="only these (NAME=ADDRESS)")
    asked = parser.parse_args()
    shutil.rmtree(ALL, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        home, port = Path(folder), free_port()
        sections = SECTIONS | {"data_dir": str(home / "data")}
        command = kvarn_serve(home / "kvarn.yaml", port, MODEL, "kvarn-demo", SETTINGS, sections)
        environment = {"KVARN_DATA_DIR": str(home / "data")}
        with running(command, port, home / "log", probe=is_ready, environment=environment) as server:
            code = shoot(
                server.url, (home / "data/bootstrap-admin-key").read_text().strip(), asked.seconds, asked.pages
            )
    keep_shown()
    sys.exit(code)


if __name__ == "__main__":
    main()
