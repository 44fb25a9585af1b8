"""What one stream costs through the server beyond the engine's step, in pairs: a server answers, then an engine in this
process decodes the same lengths while the server waits, in turns.

    python -m benchmarks.one_stream [--shape 0.6b] [--quantization int8] [--rounds 5]

Proposals are off in both. The client shares the machine, as in W1. The engine's step is the real one: scheduler, model
and sampler. Both load the model: twice its memory is needed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from rich.console import Console

from benchmarks.models import SHAPES, make_model
from benchmarks.run import DEFAULT_CACHE, DEMO, DEMO_IDS, SHAPE_IDS, run_workload
from benchmarks.server import serving
from benchmarks.workloads import SLO, Workload
from kvarn.bench.roofline import engine_for
from kvarn.bench.summary import summarise
from kvarn.bench.target import Target
from kvarn.engine import EngineCore
from kvarn.models import Decoder, load_model
from kvarn.replica.server.cpu import kernel_threads
from kvarn.text.checkpoint import resolve_checkpoint
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.executor import InProcessExecutor

PROMPT, OUTPUT = 128, 64
"""As in W1."""


@dataclass(frozen=True)
class Alone:
    """An engine in this process."""

    engine: EngineCore

    @staticmethod
    def load(folder: Path, settings: dict[str, Any]) -> Alone:
        """The model, on as many threads as a server's engine takes."""
        model = load_model(folder, **settings)
        assert isinstance(model, Decoder)
        torch.set_num_threads(kernel_threads(model.layer_bytes))
        longest = PROMPT + OUTPUT + 16
        executor = InProcessExecutor(model, num_blocks=64, max_num_seqs=1, max_context_length=longest)
        return Alone(engine_for(executor))

    def step_ms(self) -> float:
        """The mean of the steps of one answer, less the one that computes the prompt."""
        engine = self.engine
        ids = [300 + 31 * place % 3000 for place in range(PROMPT)]
        sampling = SamplingParams(seed=1, temperature=0.0, max_tokens=OUTPUT)
        engine.add(Submit(request_id="0", prompt_token_ids=ids, sampling=sampling))
        before = engine.stats().prompt_tokens_total
        while engine.stats().prompt_tokens_total < before + PROMPT:
            engine.step()
        began = time.perf_counter()
        for _ in range(OUTPUT - 8):
            engine.step()
        seconds = time.perf_counter() - began
        engine.abort_all()
        return 1000 * seconds / (OUTPUT - 8)


def tpot_ms(url: str, model: str, shape: str, seed: int, console: Console) -> float:
    """The median time of an output token of four answers, one after another."""
    target = Target(url=url, model=model, vocabulary=DEMO_IDS if shape == DEMO else SHAPE_IDS)
    stream = Workload("stream", "one stream", concurrency=1, requests=4, prompt=PROMPT, output=OUTPUT)
    summary = summarise(run_workload(stream, msgspec.structs.replace(target, seed=seed), console), SLO)
    assert summary.tpot_ms is not None and not summary.failed
    return summary.tpot_ms.p50


def main() -> None:
    """Print each pair, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=[DEMO, *SHAPES], default="0.6b")
    parser.add_argument("--quantization", choices=["int8", "int4"])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    demo = options.shape == DEMO
    folder = resolve_checkpoint("kvarn-demo") if demo else make_model(SHAPES[options.shape], DEFAULT_CACHE)
    precision = {"quantization": options.quantization} if options.quantization else {"dtype": "bfloat16"}
    settings = {**precision, "speculation": {"method": "none"}}
    console, pairs = Console(stderr=True, quiet=True), []
    with tempfile.TemporaryDirectory() as logs, serving("m", str(folder), Path(logs) / "log", settings) as server:
        alone = Alone.load(Path(folder), precision)
        for turn in range(options.rounds + 1):
            pair = (tpot_ms(server.url, server.model, options.shape, turn, console), alone.step_ms())
            if turn:  # the first warms both
                pairs.append(pair)
                print(f"through the server {pair[0]:.2f} ms a token, the step alone {pair[1]:.2f} ms", flush=True)
    served, step = (statistics.median(each) for each in zip(*pairs, strict=True))
    gap = statistics.median(pair[0] - pair[1] for pair in pairs)
    print(f"medians: {served:.2f} and {step:.2f} ms; of the pairs' differences {gap:.2f} ms")


if __name__ == "__main__":
    main()
