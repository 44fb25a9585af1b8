"""What golden prompts find: single flipped bits of the weights, and how far the answers of different builds are apart.

python -m benchmarks.golden_prompts [--model kvarn-demo] [--flips 200] [--prompts 4]
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from kvarn.config.quality import QualityConfig
from kvarn.config.schema import EngineConfig
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.kernels.cpu._native import usable_instruction_sets
from kvarn.models import Decoder, load_model
from kvarn.quality.golden import GoldenPrompt, built_in_prompts
from kvarn.quality.probe import GoldenAnswer, difference, golden_request
from kvarn.text.checkpoint import resolve_checkpoint
from kvarn.worker.executor import InProcessExecutor

Answers = dict[str, GoldenAnswer]


def answer_all(model: Decoder, prompts: list[GoldenPrompt], max_tokens: int) -> Answers:
    """What an engine with this model answers."""
    config = EngineConfig(max_num_seqs=8)
    executor = InProcessExecutor(model, num_blocks=256, max_num_seqs=8, max_context_length=256)
    engine = EngineCore(EngineParts(executor, config), time.monotonic)
    for prompt in prompts:
        engine.add(golden_request(prompt, prompt.name, max_tokens))
    deltas: dict[str, list[Any]] = defaultdict(list)
    while engine.has_work():
        for delta in engine.step().deltas:
            deltas[delta.request_id].append(delta)
    executor.shutdown()
    return {name: GoldenAnswer.of(parts) for name, parts in deltas.items()}


def flip_bit(model: Any, source: random.Random) -> tuple[torch.Tensor, int, int]:
    """Flip one bit of the layers' weights, each as likely; returns where, to flip it back, and the bit's number."""
    blobs = [
        product.packed.blob
        for layer in model._stack.layers
        for product in (layer.attention.qkv, layer.attention.output, layer.mlp.gate_up, layer.mlp.down)
    ]
    blob = source.choices(blobs, weights=[each.numel() for each in blobs])[0]
    byte, bit = source.randrange(blob.numel()), source.randrange(8)
    blob[byte] ^= 1 << bit
    return blob, byte, bit


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="kvarn-demo")
    parser.add_argument("--flips", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=QualityConfig().prompts)
    parser.add_argument("--sets", nargs="+", default=usable_instruction_sets(), help="instruction sets")
    options = parser.parse_args()
    torch.set_num_threads(1)
    directory, max_tokens = Path(resolve_checkpoint(options.model)), QualityConfig().max_tokens
    builds: dict[str, Answers] = {}
    forms: list[dict[str, Any]] = [{"dtype": "float32"}, {"dtype": "bfloat16"}]
    forms += [{"quantization": "int8"}, {"quantization": "int4"}]
    for isa in options.sets:
        for form in forms:
            os.environ["KVARN_ISA"] = isa
            model = load_model(directory, kernels="cpu", **form)
            assert isinstance(model, Decoder)
            prompts = built_in_prompts(32, model.spec.vocab_size, 256, max_tokens)
            name = f"{isa} {next(iter(form.values()))}"
            builds[name] = answer_all(model, prompts, max_tokens)
            if isa == options.sets[0]:
                measure_flips(name, model, prompts[: options.prompts], max_tokens, options.flips)
    reference = next(iter(builds))
    for name, answers in builds.items():
        found = [difference(answers[prompt], builds[reference][prompt]) for prompt in answers]
        equal = sum(answers[prompt].equals(builds[reference][prompt]) for prompt in answers)
        print(
            f"{name} to {reference}: {equal}/{len(found)} equal; "
            f"largest mean gap {max(each.mean_gap for each in found):.4f}, "
            f"largest gap {max(each.largest_gap for each in found):.3f}"
        )


def measure_flips(name: str, model: Decoder, prompts: list[GoldenPrompt], max_tokens: int, flips: int) -> None:
    """How many of as many single flipped bits change an answer."""
    source, expected = random.Random(1), answer_all(model, prompts, max_tokens)
    assert answer_all(model, prompts, max_tokens) == expected
    found, gaps = 0, []
    for _ in range(flips):
        blob, byte, bit = flip_bit(model, source)
        answers = answer_all(model, prompts, max_tokens)
        blob[byte] ^= 1 << bit
        changed = [difference(answers[prompt], expected[prompt]) for prompt in answers]
        found += any(not answers[prompt].equals(expected[prompt]) for prompt in answers)
        gaps.append(max(each.mean_gap for each in changed))
    gaps.sort()
    print(
        f"{name}: {found} of {flips} flipped bits found; mean gap: median {gaps[flips // 2]:.2g}, most {gaps[-1]:.2g}"
    )


if __name__ == "__main__":
    main()
