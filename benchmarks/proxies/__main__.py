"""What a gateway adds to the time to first token, and how many tokens a second pass through one gateway process.

    python -m benchmarks.proxies --cache ~/.cache/kvarn-peers --rounds 3

Kvarn's gateway and LiteLLM's proxy (installed into an environment of its own in the cache folder) stand before engines
that keep the same time; a third run has no gateway at all. They are measured in turns. Latency: 32 streams, a token
each 20 ms. Throughput: 160 streams at that pace, which is 8,000 tokens a second where the gateway keeps up; and 32
streams with steps that take no time, where Kvarn puts several tokens into an event and LiteLLM's proxy falls behind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
START_S = 120.0
LITELLM = "litellm[proxy]>=1.60"

KEYS = {"direct": "none", "kvarn": "kvarn", "litellm": "sk-of-this-measurement-alone"}
"""What the client sends; LiteLLM's proxy does not start without a key of its own."""

Server = subprocess.Popen[str]


@contextlib.contextmanager
def process(command: list[str], log: Path, environment: dict[str, str] | None = None) -> Iterator[Server]:
    """Run a server as long as the block lasts."""
    with log.open("w") as errors:
        server = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env=dict(os.environ) | (environment or {}),
            start_new_session=True,
        )
    try:
        yield server
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def port_of(server: Server) -> int:
    """The port that a server of this package prints."""
    assert server.stdout is not None
    return int(server.stdout.readline())


def _module(name: str, step_ms: float) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.proxies.{name}", "--step-ms", str(step_ms)]


@contextlib.contextmanager
def direct(step_ms: float, folder: Path) -> Iterator[str]:
    """The clock engine without a gateway."""
    with process(
        [sys.executable, "-m", "benchmarks.proxies.clock_engine", "--step-ms", str(step_ms)], folder / "d"
    ) as p:
        yield f"http://127.0.0.1:{port_of(p)}/v1/chat/completions"


@contextlib.contextmanager
def kvarn(step_ms: float, folder: Path) -> Iterator[str]:
    """Kvarn's gateway and engine process, with the clock for a model."""
    with process(
        [sys.executable, "-m", "benchmarks.proxies.kvarn_gateway", "--step-ms", str(step_ms)], folder / "k"
    ) as p:
        url = f"http://127.0.0.1:{port_of(p)}/v1/chat/completions"
        time.sleep(1.0)
        yield url


def litellm_in(cache: Path) -> Callable[[float, Path], contextlib.AbstractContextManager[str]]:
    """LiteLLM's proxy, one worker, without a database or keys, before the clock engine."""
    home = cache / "litellm"
    program = home / "venv" / "bin" / "litellm"
    if not program.exists():
        print("installing LiteLLM (once; some minutes) ...", file=sys.stderr)
        venv.create(home / "venv", with_pip=True)
        subprocess.run([home / "venv" / "bin" / "pip", "install", "--quiet", LITELLM], check=True)

    @contextlib.contextmanager
    def litellm(step_ms: float, folder: Path) -> Iterator[str]:
        with direct(step_ms, folder) as engine:
            config = folder / "litellm.yaml"
            base = engine.removesuffix("/chat/completions")
            parameters = {"model": "openai/m", "api_base": base, "api_key": "none"}
            config.write_text(json.dumps({"model_list": [{"model_name": "m", "litellm_params": parameters}]}))
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            command = [str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
            quiet = {
                "LITELLM_MASTER_KEY": KEYS["litellm"],
                "LITELLM_LOG": "ERROR",
                "LITELLM_TELEMETRY": "False",
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            }
            with process(
                [*command, "--num_workers", "1"], folder / "litellm.log", quiet | {"HOME": str(home)}
            ) as server:
                _wait_for(port, server)
                yield f"http://127.0.0.1:{port}/v1/chat/completions"

    return litellm


def _wait_for(port: int, server: Server) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                time.sleep(2.0)
                return
        time.sleep(0.2)
    raise SystemExit("LiteLLM's proxy did not start")


def measure(url: str, streams: int, tokens: int, seconds: float, key: str) -> tuple[float, float, float]:
    """Median TTFT in milliseconds, tokens and events a second."""
    command = [sys.executable, "-m", "benchmarks.proxies.client", url, "--key", key]
    numbers = ["--streams", str(streams), "--tokens", str(tokens), "--seconds", str(seconds)]
    done = subprocess.run([*command, *numbers], capture_output=True, text=True, cwd=ROOT, check=False)
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
    parser.add_argument("--only", help="comma-separated: direct, kvarn, litellm")
    arguments = parser.parse_args()
    targets = {"direct": direct, "kvarn": kvarn}
    if arguments.only is None or "litellm" in arguments.only:
        targets["litellm"] = litellm_in(arguments.cache.expanduser())
    if arguments.only is not None:
        targets = {name: target for name, target in targets.items() if name in arguments.only.split(",")}
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in targets}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            for name, target in targets.items():
                with target(20.0, Path(folder)) as url:
                    ttft = measure(url, arguments.streams, 64, arguments.seconds, KEYS[name])[0]
                    _, paced, paced_events = measure(url, arguments.many, 64, arguments.seconds, KEYS[name])
                with target(0.0, Path(folder)) as url:
                    _, tokens, events = measure(url, arguments.streams, 200, arguments.seconds, KEYS[name])
                found[name].append((ttft, paced, paced_events, tokens, events))
                print(f"round {number + 1} {name}: {_told(found[name][-1])}", flush=True)
    print(f"\nmedians of {arguments.rounds} rounds, {arguments.streams} streams")
    middle = {name: tuple(median(column) for column in zip(*rows, strict=True)) for name, rows in found.items()}
    for name, row in middle.items():
        added = f"; adds {row[0] - middle['direct'][0]:+.1f} ms" if "direct" in middle else ""
        print(f"{name:>8}: {_told(row)}{added}")


def _told(row: tuple[float, ...]) -> str:
    paced, fast = (f"{tokens:,.0f} tokens/s in {events:,.0f} events/s" for tokens, events in (row[1:3], row[3:5]))
    return f"TTFT {row[0]:.1f} ms; paced {paced}; unpaced {fast}"


if __name__ == "__main__":
    main()
