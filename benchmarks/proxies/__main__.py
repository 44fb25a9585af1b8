"""What a gateway adds to the time to first token, and how many tokens a second pass through one gateway process.

    python -m benchmarks.proxies --cache ~/.cache/kvarn-peers --rounds 3

Kvarn's gateway and LiteLLM's proxy (installed into an environment of its own in the cache folder) stand before engines
that keep the same time; a third run has no gateway at all. They are measured in turns. Latency: 32 streams, a token
each 20 ms. Throughput: 160 streams at that pace, which is 8,000 tokens a second where the gateway keeps up; and 32
streams with steps that take no time, where Kvarn puts several tokens into an event and LiteLLM's proxy falls behind.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median

from benchmarks.overload.server import DEFAULT, command
from benchmarks.server import ROOT, Started, free_port, running

LITELLM = "litellm[proxy]>=1.60"
KEYS = {"direct": "none", "kvarn": "kvarn", "litellm": "sk-of-this-measurement-alone"}
"""What the client sends; LiteLLM's proxy does not start without a key of its own."""
SETTINGS = {
    "LITELLM_MASTER_KEY": KEYS["litellm"],
    "LITELLM_LOG": "ERROR",
    "LITELLM_TELEMETRY": "False",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


def direct(step_ms: float, folder: Path) -> AbstractContextManager[Started]:
    """The clock engine without a gateway."""
    port = free_port()
    engine = [sys.executable, "-m", "benchmarks.proxies.clock_engine", "--step-ms", str(step_ms), "--port", str(port)]
    return running(engine, port, folder / "direct.log")


def kvarn(step_ms: float, folder: Path) -> AbstractContextManager[Started]:
    """Kvarn's gateway and engine process; each step of the engine takes the same time."""
    port = free_port()
    return running(command(DEFAULT, port, "--step-ms", str(step_ms)), port, folder / "kvarn.log")


def install_litellm(cache: Path) -> Path:
    """LiteLLM's program; installed where it is not there."""
    home = cache / "litellm"
    program = home / "venv" / "bin" / "litellm"
    if not program.exists():
        print("installing LiteLLM (once; some minutes) ...", file=sys.stderr)
        venv.create(home / "venv", with_pip=True)
        subprocess.run([home / "venv" / "bin" / "pip", "install", "--quiet", LITELLM], check=True)
    return program


@contextmanager
def litellm(step_ms: float, folder: Path, cache: Path) -> Iterator[Started]:
    """LiteLLM's proxy, one worker, without a database or keys, before the clock engine."""
    program, port, config = install_litellm(cache), free_port(), folder / "litellm.yaml"
    with direct(step_ms, folder) as engine:
        parameters = {"model": "openai/m", "api_base": f"{engine.url}/v1", "api_key": "none"}
        config.write_text(json.dumps({"model_list": [{"model_name": "m", "litellm_params": parameters}]}))
        proxy = [str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
        with running(
            [*proxy, "--num_workers", "1"],
            port,
            folder / "litellm.log",
            probe=lambda url, _model: urllib.request.urlopen(f"{url}/health/liveliness", timeout=10).close(),
            environment=SETTINGS | {"HOME": str(cache / "litellm")},
            limit_s=120.0,
        ) as started:
            yield started


def measure(url: str, streams: int, tokens: int, seconds: float, key: str) -> tuple[float, float, float]:
    """Median TTFT in milliseconds, tokens and events a second."""
    client = [sys.executable, "-m", "benchmarks.proxies.client", f"{url}/v1/chat/completions", "--key", key]
    numbers = ["--streams", str(streams), "--tokens", str(tokens), "--seconds", str(seconds)]
    done = subprocess.run([*client, *numbers], capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(f"the client failed: {done.stderr[-1500:]}")
    found = json.loads(done.stdout)
    return median(found["ttft_ms"]), found["tokens"] / found["seconds"], found["events"] / found["seconds"]


def main() -> None:
    """Measure in turns and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/kvarn-peers"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--many", type=int, default=160, help="streams of the paced load")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", default="direct,kvarn,litellm", help="comma-separated")
    asked = parser.parse_args()
    targets = {
        "direct": direct,
        "kvarn": kvarn,
        "litellm": lambda step_ms, folder: litellm(step_ms, folder, asked.cache.expanduser()),
    }
    chosen = {name: target for name, target in targets.items() if name in asked.only.split(",")}
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in chosen}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.rounds):
            for name, target in chosen.items():
                with target(20.0, Path(folder)) as server:
                    ttft = measure(server.url, asked.streams, 64, asked.seconds, KEYS[name])[0]
                    _, *paced = measure(server.url, asked.many, 64, asked.seconds, KEYS[name])
                with target(0.0, Path(folder)) as server:
                    _, *unpaced = measure(server.url, asked.streams, 200, asked.seconds, KEYS[name])
                found[name].append((ttft, *paced, *unpaced))
                print(f"round {number + 1} {name}: {in_words(found[name][-1])}", flush=True)
    print(f"\nmedians of {asked.rounds} rounds, {asked.streams} streams")
    middle = {name: tuple(median(column) for column in zip(*rows, strict=True)) for name, rows in found.items()}
    for name, row in middle.items():
        added = f"; adds {row[0] - middle['direct'][0]:+.1f} ms" if "direct" in middle else ""
        print(f"{name:>8}: {in_words(row)}{added}")


def in_words(row: tuple[float, ...]) -> str:
    paced, fast = (f"{tokens:,.0f} tokens/s in {events:,.0f} events/s" for tokens, events in (row[1:3], row[3:5]))
    return f"TTFT {row[0]:.1f} ms; paced {paced}; unpaced {fast}"


if __name__ == "__main__":
    main()
