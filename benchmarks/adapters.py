"""What adapters cost: the real scheduler, kernels and model in this process, with random weights.

    python -m benchmarks.adapters --shape 0.6b --adapters 200 --rank 16

Two engines over one model work through the same requests, a step of one and a step of the other in turns, so that both
see the same moments of the machine: one with an adapter for each request, drawn by Zipf's law over all, one without.
Then the same for decodes without adapters on an engine that holds them, and the time to the first token of a request
whose adapter is in host memory only.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.models import SHAPES, make_model
from kvarn.config.schema import EngineConfig
from kvarn.engine import EngineCore, EngineParts
from kvarn.kernels.adapters import AdapterPart, PackedAdapter, pack_adapter
from kvarn.models import Decoder, load_model
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.executor import InProcessExecutor

BASE = ""


@dataclass(frozen=True)
class Load:
    """Requests of one measurement."""

    streams: int
    requests: int
    prompt: int
    output: int


class Engine:
    """An engine with its own cache, the adapters in its host memory, and the time its steps took."""

    def __init__(self, model: Decoder, load: Load, num_blocks: int, adapters: dict[str, PackedAdapter]) -> None:
        executor = InProcessExecutor(model, num_blocks=num_blocks, max_num_seqs=load.streams)
        for name, packed in adapters.items():
            executor.adapters.add(name, packed)
        config = EngineConfig(max_num_seqs=load.streams, token_budget=512, tpot_target_ms=1e9, prefix_cache=False)
        store = executor.adapters if adapters else None
        self.core = EngineCore(EngineParts(executor, config, adapters=store), time.monotonic)
        self.seconds = 0.0
        self.tokens = 0
        self._vocabulary = model.spec.vocab_size

    def add(self, request_id: str, load: Load, adapter: str) -> None:
        """A request of its own tokens, which ends at its length only."""
        number = int(request_id)
        prompt = [3 + (7 * place + 31 * number) % (self._vocabulary - 3) for place in range(load.prompt)]
        sampling = SamplingParams(seed=1, temperature=0.0, max_tokens=load.output)
        self.core.add(Submit(request_id=request_id, prompt_token_ids=prompt, sampling=sampling, adapter=adapter))

    def step(self) -> float:
        """One step; returns its seconds."""
        began = time.perf_counter()
        output = self.core.step()
        took = time.perf_counter() - began
        self.seconds += took
        self.tokens += sum(len(delta.token_ids) for delta in output.deltas)
        return took


def random_adapters(model: Decoder, count: int, rank: int) -> dict[str, PackedAdapter]:
    """Adapters of all layers, different in memory and alike in size."""
    generator = torch.Generator().manual_seed(1)
    made: dict[str, PackedAdapter] = {}
    for number in range(count):
        layers = []
        for spec, layer in model.adapted_layers:
            parts, first = [], 0
            for shard in spec.outputs:
                a = torch.randn(rank, layer.in_features, generator=generator) * 0.02
                b = torch.randn(len(shard.held), rank, generator=generator) * 0.02
                parts.append(AdapterPart(first, a, b, 1.0))
                first += len(shard.held)
            layers.append(parts)
        made[f"adapter-{number}"] = pack_adapter(layers, model.dtype)
    return made


def zipf(count: int, names: list[str], seed: int = 7) -> list[str]:
    """Names drawn with chances in proportion to 1, 1/2, 1/3, ..."""
    weights = 1.0 / np.arange(1, len(names) + 1)
    return [str(name) for name in np.random.default_rng(seed).choice(names, count, p=weights / weights.sum())]


def throughput(model: Decoder, load: Load, num_blocks: int, adapters: dict[str, PackedAdapter]) -> None:
    """The same requests with adapters and without, a step of each in turns."""
    chosen = zipf(load.requests, list(adapters))
    engines = [Engine(model, load, num_blocks, adapters), Engine(model, load, num_blocks, {})]
    for number, name in enumerate(chosen):
        engines[0].add(str(number), load, name)
        engines[1].add(str(number), load, BASE)
    pairs: list[float] = []
    distinct: list[int] = []
    while any(engine.core.has_work() for engine in engines):
        took = [engine.step() if engine.core.has_work() else 0.0 for engine in engines]
        stats = [engine.core.stats() for engine in engines]
        if stats[0].batch_tokens == stats[1].batch_tokens == load.streams:
            pairs.append(took[1] / took[0])
            distinct.append(len(stats[0].adapters.running))
    speeds = [engine.tokens / engine.seconds for engine in engines]
    stats = engines[0].core.stats()
    print(
        f"throughput, {load.requests} requests ({load.prompt} + {load.output} tokens) of {len(set(chosen))} adapters, "
        f"{load.streams} at once: {speeds[0]:.1f} tokens/s with adapters, {speeds[1]:.1f} without: "
        f"{100 * speeds[0] / speeds[1]:.1f} %"
    )
    print(
        f"  full decode steps: {100 * statistics.median(pairs):.1f} % (median of {len(pairs)} pairs), "
        f"{statistics.mean(distinct):.1f} adapters in a step; {stats.adapters.loads_total} loads, "
        f"{stats.adapters.evictions_total} evictions"
    )


def base_only(model: Decoder, load: Load, num_blocks: int, adapters: dict[str, PackedAdapter], steps: int) -> None:
    """Decodes without adapters: on an engine that holds adapters, and on one that has none."""
    engines = [Engine(model, load, num_blocks, adapters), Engine(model, load, num_blocks, {})]
    long = Load(load.streams, load.streams, load.prompt, steps + 64)
    for engine in engines:
        for number in range(load.streams):
            engine.add(str(number), long, BASE)
        while engine.core.stats().batch_seqs != load.streams or engine.core.stats().batch_tokens != load.streams:
            engine.step()
    ratios = [engines[1].step() / engines[0].step() for _ in range(steps)]
    print(f"base-only decodes of {load.streams}: {100 * statistics.median(ratios):.1f} % (median of {steps} pairs)")


def cold(model: Decoder, load: Load, num_blocks: int, adapters: dict[str, PackedAdapter], rounds: int) -> None:
    """Time to the first token of one request alone: its adapter in blocks, and in host memory only."""
    engine = Engine(model, load, num_blocks, adapters)
    single = Load(1, 1, load.prompt, 1)
    names = list(adapters)[: rounds + 1]
    times: dict[str, list[float]] = {"first": [], "second": []}
    number = 0
    for name in names:
        for kind in ("first", "second"):
            engine.add(str(number), single, name)
            number += 1
            began = time.perf_counter()
            while engine.core.has_work():
                engine.step()
            times[kind].append(1000 * (time.perf_counter() - began))
    first, second = (statistics.median(times[kind][1:]) for kind in ("first", "second"))
    size = adapters[names[0]].nbytes
    print(
        f"first token after {load.prompt} tokens: {second:.1f} ms with the adapter in blocks, {first:.1f} ms from host "
        f"memory: {first - second:+.1f} ms for {size / 2**20:.1f} MiB"
    )


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.6b", choices=sorted(SHAPES))
    parser.add_argument("--adapters", type=int, default=200)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--output", type=int, default=48)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=0, help="of the KV cache; default: room for what runs")
    parser.add_argument("--models", type=Path, help="folder where checkpoints are kept; default: none is")
    parser.add_argument("--smoke", action="store_true", help="a few seconds of it, on a tiny shape")
    given = parser.parse_args()
    shape, count, steps = ("tiny", 4, 3) if given.smoke else (given.shape, given.adapters, 30)
    load = Load(2, 4, 16, 8) if given.smoke else Load(given.streams, given.requests, given.prompt, given.output)
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        cache = given.models or Path(folder)
        model = load_model(make_model(SHAPES[shape], cache), dtype="bfloat16")
    assert isinstance(model, Decoder)
    adapters = random_adapters(model, count, given.rank)
    probe = model.new_adapter_memory(model.new_kv_cache(1))
    each = probe.num_blocks(next(iter(adapters.values())))
    needed = load.streams * (each + 2 + (load.prompt + max(load.output, steps + 64)) // 16)
    num_blocks = given.blocks or needed
    print(
        f"{shape} shape, {model.kernels.name}, {count} adapters of rank {given.rank}: "
        f"{next(iter(adapters.values())).nbytes / 2**20:.1f} MiB or {each} KV blocks each, {num_blocks} blocks"
    )
    throughput(model, load, num_blocks, adapters)
    base_only(model, load, num_blocks, adapters, steps)
    cold(model, load, num_blocks, adapters, min(steps, count - 1))


if __name__ == "__main__":
    main()
