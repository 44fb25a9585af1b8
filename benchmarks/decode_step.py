"""How long one decode step takes: the real scheduler, model and sampler in this process, no gateway.

    python -m benchmarks.decode_step --model src/kvarn/assets/kvarn-demo --batch 32 --threads 1

Set OMP_WAIT_POLICY to see what waiting threads cost. `--single-calls` loads the model a second time, so that each
operation of a layer is a call of its own, and takes steps of both in turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from kvarn.config.engine import EngineConfig
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.models import Decoder, load_model
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.executor import InProcessExecutor


def decoding_engine(model: Decoder, batch: int, prompt: int, steps: int) -> EngineCore:
    """An engine whose `batch` requests have computed their prompts and still decode for `steps` steps."""
    executor = InProcessExecutor(model, num_blocks=4096, max_num_seqs=batch)
    engine = EngineCore(EngineParts(executor, EngineConfig(max_num_seqs=batch, tpot_target_ms=1e9)), time.monotonic)
    sampling = SamplingParams(seed=1, temperature=0.0, max_tokens=steps + 100)
    for number in range(batch):
        token_ids = [300 + (7 * place + number) % (model.spec.vocab_size - 300) for place in range(prompt)]
        engine.add(Submit(request_id=str(number), prompt_token_ids=token_ids, sampling=sampling))
    while engine.stats().batch_tokens != batch or engine.stats().batch_seqs != batch:
        engine.step()
    return engine


def load(path: Path, precision: dict[str, Any], *, single_calls: bool = False) -> Decoder:
    """The model. `single_calls`: its layers are not joined into one call of the kernels."""
    model = load_model(path, **precision)
    assert isinstance(model, Decoder), "the checkpoint is an encoder"
    if single_calls:
        model.kernels.operations.decoder_layers = lambda parts: None  # type: ignore[method-assign]
    return model


def in_turns(engines: dict[str, EngineCore], steps: int, together: int = 8) -> dict[str, list[float]]:
    """Milliseconds of each of about `steps` steps of each engine, some of one and some of the other in turns."""
    found: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(-(-steps // together)):
        for name in sorted(engines, reverse=turn % 2 == 1):
            for _ in range(together):
                began = time.perf_counter()
                engines[name].step()
                found[name].append(1000 * (time.perf_counter() - began))
    return found


def main() -> None:
    """Print wall and processor time of a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a checkpoint")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=40)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quantization", choices=["int8", "int4"], help="in place of --dtype")
    parser.add_argument("--single-calls", action="store_true", help="compare with a call for each operation")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    quantized = {"quantization": arguments.quantization}
    precision = quantized if arguments.quantization else {"dtype": arguments.dtype}
    shape = (arguments.batch, arguments.prompt, arguments.steps)
    engine = decoding_engine(load(arguments.model, precision), *shape)
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(arguments.steps):
        engine.step()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    print(
        f"{1000 * wall / arguments.steps:.1f} ms a step, {1000 * processor / arguments.steps:.1f} ms of processor time"
    )
    if arguments.single_calls:
        single = decoding_engine(load(arguments.model, precision, single_calls=True), *shape)
        for name, times in in_turns({"one call": engine, "single calls": single}, arguments.steps).items():
            print(f"{name}: median {statistics.median(times):.2f} ms a step, least {min(times):.2f}")


if __name__ == "__main__":
    main()
