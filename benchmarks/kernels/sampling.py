"""How long it takes to find and draw tokens: the compiled kernels beside torch, in alternation; the best of each.

python -m benchmarks.kernels.sampling --rows 1 32 256 --vocab 32000 151936 --rounds 5
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from kvarn.kernels.backend import torch_kernels
from kvarn.kernels.cpu.backend import cpu_kernels
from kvarn.kernels.sampling import SamplingTensors

KINDS: dict[str, dict[str, float]] = {
    "temperature": {},
    "top-p 0.95": {"top_p": 0.95},
    "top-k 50": {"top_k": 50},
    "min-p 0.05": {"min_p": 0.05},
    "top-p 0.9999": {"top_p": 0.9999},
}


def params_of(rows: int, top_k: float = 0, top_p: float = 1.0, min_p: float = 0.0) -> SamplingTensors:
    """The same filters for every row, at temperature 0.8."""
    return SamplingTensors(
        temperature=torch.full((rows,), 0.8),
        top_k=torch.full((rows,), int(top_k)),
        top_p=torch.full((rows,), top_p, dtype=torch.float64),
        min_p=torch.full((rows,), min_p),
        uniforms=torch.rand(rows, dtype=torch.float64),
    )


def report(name: str, native: Callable[[], object], reference: Callable[[], object], rounds: int) -> None:
    """Print the best time of both, in milliseconds."""
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for place, operation in enumerate((native, reference)):
            started = time.perf_counter()
            operation()
            best[place] = min(best[place], 1000 * (time.perf_counter() - started))
    print(f"  {name:14} {best[0]:9.3f} ms   torch {best[1]:9.3f} ms")


def main() -> None:
    """Every kind of draw for every number of rows and vocabulary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--vocab", type=int, nargs="+", default=[32_000, 151_936])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    compiled, reference = cpu_kernels(), torch_kernels()
    for vocab in arguments.vocab:
        for count in arguments.rows:
            logits, rows = torch.randn(count, vocab) * 3, torch.arange(count)
            row_max = logits.amax(-1)
            print(f"{count} rows of {vocab}")
            report(
                "greedy",
                lambda x=logits: compiled.operations.most_likely(x),
                lambda x=logits: reference.operations.most_likely(x),
                arguments.rounds,
            )
            for name, filters in KINDS.items():
                given = (logits, rows, row_max, params_of(count, **filters))
                report(
                    name,
                    lambda given=given: compiled.operations.draw_tokens(*given),
                    lambda given=given: reference.operations.draw_tokens(*given),
                    arguments.rounds,
                )


if __name__ == "__main__":
    main()
