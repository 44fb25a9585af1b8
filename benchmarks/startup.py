"""How long `kvarn serve` takes from process start to the first streamed token of the demo model or another.

    python -m benchmarks.startup --runs 7
    python -m benchmarks.startup --model FOLDER -- --quantization int4 --packed-cache off

Starts the real command that many times, one after the other, and prints medians: of the engine's own phases (as it
reports them in its log), of the time to readiness and of the time to the first token. The load average is printed
beside them: on a machine that does other work, the numbers say more about that work.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

ENTRY = "from kvarn.cli.main import main; main()"
"""What the `kvarn` script does."""

READY = re.compile(r"Kvarn serves (\S+) at (http://\S+)")
PHASES = re.compile(r'msg="the engine is ready" (.*)')


@dataclass
class Run:
    ready_s: float
    first_token_s: float
    phases: dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--model", default="kvarn-demo")
    parser.add_argument("serve", nargs="*", help="further arguments of `kvarn serve`")
    arguments = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    runs = [measure(arguments.model, arguments.serve) for _ in range(arguments.runs)]
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"load average after:  {os.getloadavg()[0]:.1f}\n")
    print(f"median of {len(runs)} runs, seconds\n")
    for phase in runs[0].phases:
        if phase not in ("total_s",):
            report(f"engine: {phase.removesuffix('_s').replace('_', ' ')}", [run.phases[phase] for run in runs])
    report("engine ready after its spawn", [run.phases["total_s"] for run in runs])
    report("command says ready", [run.ready_s for run in runs])
    report("first token", [run.first_token_s for run in runs])
    print(f"{'CPU time of a run, all processes':42}{(cpu.ru_utime + cpu.ru_stime) / len(runs):8.2f}")
    return 0


def report(name: str, values: list[float]) -> None:
    print(f"{name:42}{statistics.median(values):8.2f}   ({min(values):.2f} to {max(values):.2f})")


def measure(model: str, settings: Sequence[str] = ()) -> Run:
    began = time.monotonic()
    command = [sys.executable, "-c", ENTRY, "serve", model, "--port", "0", *settings]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    log: list[str] = []
    reader = threading.Thread(target=lambda: log.extend(process.stderr or ()), daemon=True)
    reader.start()
    try:
        for line in process.stdout:
            found = READY.search(line)
            if found:
                break
        else:
            raise SystemExit(f"kvarn serve ended with {process.wait()}:\n{''.join(log)}")
        ready_s = time.monotonic() - began
        stream_first_token(found[2], found[1])
        first_token_s = time.monotonic() - began
    finally:
        process.terminate()
        process.wait()
        reader.join()
    return Run(ready_s, first_token_s, read_phases("".join(log)))


def stream_first_token(url: str, model: str) -> None:
    """Ask for an answer and return when the first piece of text is here."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port)
    question = {"role": "user", "content": "What is Kvarn?"}
    body = {"model": model, "messages": [question], "stream": True, "max_tokens": 8}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    for line in response:
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
            break
    else:
        raise SystemExit(f"no token came: {response.status}")
    connection.close()


def read_phases(log: str) -> dict[str, float]:
    found = PHASES.search(log)
    if found is None:
        raise SystemExit(f"the engine's log does not say how long it took:\n{log}")
    pairs = (pair.split("=") for pair in found[1].split())
    return {key: float(value) for key, value in pairs if key.endswith("_s")}


if __name__ == "__main__":
    sys.exit(main())
