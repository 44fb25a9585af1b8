"""How long one decode step takes: the real scheduler, model and sampler in this process, no gateway.

    python -m benchmarks.decode_step --model src/kvarn/assets/kvarn-demo --batch 32 --threads 1

Set OMP_WAIT_POLICY to see what waiting threads cost.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from kvarn.config.schema import EngineConfig
from kvarn.engine import EngineCore
from kvarn.models import Decoder, load_model
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker import InProcessExecutor


def decoding_engine(model: Decoder, batch: int, prompt: int, steps: int) -> EngineCore:
    """An engine whose `batch` requests have computed their prompts and still decode for `steps` steps."""
    executor = InProcessExecutor(model, num_blocks=4096, max_num_seqs=batch)
    engine = EngineCore(executor, EngineConfig(max_num_seqs=batch, tpot_target_ms=1e9), time.monotonic)
    sampling = SamplingParams(seed=1, temperature=0.0, max_tokens=steps + 100)
    for number in range(batch):
        token_ids = [300 + (7 * place + number) % (model.spec.vocab_size - 300) for place in range(prompt)]
        engine.add(Submit(request_id=str(number), prompt_token_ids=token_ids, sampling=sampling))
    while engine.stats().batch_tokens != batch or engine.stats().batch_seqs != batch:
        engine.step()
    return engine


def main() -> None:
    """Print wall and processor time of a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a checkpoint")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=40)
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    model = load_model(arguments.model, dtype="float32")
    assert isinstance(model, Decoder), "the checkpoint is an encoder"
    engine = decoding_engine(model, arguments.batch, arguments.prompt, arguments.steps)
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(arguments.steps):
        engine.step()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    print(
        f"{1000 * wall / arguments.steps:.1f} ms a step, {1000 * processor / arguments.steps:.1f} ms of processor time"
    )


if __name__ == "__main__":
    main()
