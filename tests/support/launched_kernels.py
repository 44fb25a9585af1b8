"""Says which kernels an engine launches in traffic that it did not compile ahead. Nothing is compiled or computed: run
it in a process of its own, without Triton's interpreter.

python launched_kernels.py FAMILY [NAME=INTEGER of config.json ...]
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from kvarn.config.engine import EngineConfig
from kvarn.config.speculation import SpeculationConfig
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.kernels.triton import backend
from kvarn.kernels.triton.compilation import COMPILATION
from kvarn.models import CausalEncoder, Decoder, Encoder
from kvarn.models.load import load_model
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.async_executor import AsyncExecutor
from kvarn.worker.encoder_runner import EncoderRunner
from kvarn.worker.proposers.ngram import NgramProposer
from kvarn.worker.step_sizes import StepSizes, launch_steps
from tiny_checkpoints import ENCODERS, make_decoder, make_encoder

SEQUENCES, BUDGET, CONTEXT = 48, 600, 1024


class Driver:
    """Triton's driver of an H100 that is not there."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0


def on_zeroed_memory() -> None:
    """What no kernel has written is zero: token 0, logits of 0, no context."""
    torch.empty, torch.empty_like = torch.zeros, torch.zeros_like
    torch.Tensor.new_empty = torch.Tensor.new_zeros


def load(family: str, changes: dict[str, int]) -> Decoder | Encoder | CausalEncoder:
    """A model for GPUs, in main memory."""
    with tempfile.TemporaryDirectory() as folder:
        if family in ENCODERS:
            make_encoder(family, Path(folder), **changes)
        else:
            make_decoder(family, Path(folder), max_position_embeddings=CONTEXT, **changes)
        is_interpreting, backend.is_interpreting = backend.is_interpreting, lambda: True
        model = load_model(Path(folder), kernels="triton", dtype="bfloat16")
        backend.is_interpreting = is_interpreting
    return model


def serve(model: Decoder) -> None:
    """Requests of many lengths, in chunks, some of which share a prefix, draw, or ask for log-probabilities."""
    num_snapshots = 8 if model.spec.has_states else None
    executor = AsyncExecutor(
        model,
        num_blocks=1500,
        max_num_seqs=SEQUENCES,
        max_context_length=CONTEXT,
        num_snapshots=num_snapshots or 0,
        fill_up=True,
    )
    config = EngineConfig(max_num_seqs=SEQUENCES, token_budget=BUDGET, tpot_target_ms=1e9)
    guesses = SpeculationConfig(adaptive=False)
    proposer = NgramProposer(guesses) if num_snapshots is None else None
    core = EngineCore(
        EngineParts(executor, config, proposer=proposer, speculation=guesses, num_snapshots=num_snapshots), lambda: 0.0
    )
    chosen = random.Random(0)
    shared = [chosen.randrange(3, 190) for _ in range(300)]
    for wave in range(8):
        for index in range(chosen.choice((1, 2, 3, 7, SEQUENCES))):
            own = [chosen.randrange(3, 190) for _ in range(chosen.choice((1, 5, 17, 33, 65, 130, 600)))]
            sampling = SamplingParams(
                seed=0,
                temperature=chosen.choice((0.0, 0.0, 1.0)),
                top_p=0.9,
                max_tokens=chosen.randrange(1, 6),
                logprobs=chosen.choice((None, None, 2)),
                prompt_logprobs=chosen.choice((None, None, None, 1)),
                frequency_penalty=chosen.choice((0.0, 0.0, 0.5)),
            )
            prompt = (shared if chosen.random() < 0.5 else []) + own
            core.add(Submit(request_id=f"{wave}-{index}", prompt_token_ids=prompt, sampling=sampling))
        while core.has_work():
            core.step()
    assert proposer is None or core.stats().speculation.draft_tokens_total, "guesses were verified"
    executor.shutdown()


def embed(model: Encoder | CausalEncoder) -> None:
    """Texts of many lengths and numbers."""
    runner, chosen = EncoderRunner(model, BUDGET), random.Random(0)
    for _ in range(20):
        longest = chosen.choice((1, 5, 20, 70))
        count = chosen.choice((1, 2, 7, 16))
        runner.embed([[chosen.randrange(90) for _ in range(chosen.randint(1, longest))] for _ in range(count)])


def main(family: str, *changes: str) -> int:
    driver.set_active(Driver())
    on_zeroed_memory()
    model = load(family, {name: int(value) for name, _, value in (each.partition("=") for each in changes)})
    if isinstance(model, Decoder):
        sizes = StepSizes(SEQUENCES, BUDGET, CONTEXT)
        ahead = COMPILATION.find(partial(launch_steps, model, model.new_kv_cache(8, SEQUENCES), sizes))
        launched = COMPILATION.find(partial(serve, model))
    else:
        ahead = COMPILATION.find(EncoderRunner(model, BUDGET).launch_all_sizes)
        launched = COMPILATION.find(partial(embed, model))
    missed = [each for each in launched if each not in ahead]
    lines = [
        f"{name}: {sorted(Counter(each.name for each in found).items())}"
        for name, found in (("compiled ahead", ahead), ("launched", launched))
    ]
    lines += [f"not compiled ahead: {each.name} {each.key}" for each in missed]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if missed or not launched else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
