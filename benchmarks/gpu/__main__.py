"""What the kernels and the engine do on a GPU: one command, one file of results. See docs/internals/gpu.md.

python -m benchmarks.gpu prepare        where there is a network: wheels of what the GPU's machine lacks
python -m benchmarks.gpu                there: a whole run of 28 minutes
python -m benchmarks.gpu --dry-run      anywhere: every stage in Triton's interpreter, on tiny shapes
python -m benchmarks.gpu compile        anywhere: what the compiler makes of each kernel for sm_90
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.gpu.prepare import prepare, use_prepared


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("command", nargs="?", default="run", choices=("run", "prepare", "compile", "one"))
    parser.add_argument("--minutes", type=float, default=28)
    parser.add_argument("--quick", action="store_true", help="the engine and the kernels' times first, no peer")
    parser.add_argument("--dry-run", action="store_true", help="in the interpreter, on tiny shapes")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="file of results")
    parser.add_argument("--stages", nargs="*", help="only these, after the probe")
    parser.add_argument("--shapes", nargs="*", choices=("8B", "0.6B", "1B"), help="of models")
    parser.add_argument("--batches", nargs="*", type=int, help="sequences that the engine decodes at once")
    parser.add_argument("--forms", nargs="*", choices=("bf16", "fp8", "int8", "int4"), help="of the engine's weights")
    parser.add_argument("--rows", nargs="*", type=int, help="of products that are timed")
    parser.add_argument("--only", default="", help="timed kernels whose name contains this")
    parser.add_argument("--markdown", action="store_true", help="compile: the table of docs/internals/gpu.md")
    parser.add_argument("--python", default="3.12", help="prepare: the GPU machine's version")
    parser.add_argument("--case", default="", help="one: the timed kernel to run three times, for a profiler")
    options = parser.parse_args()
    if options.command == "prepare":
        prepare(options.python)
        return 0
    use_prepared()
    if options.command == "compile":
        return _compile(options.markdown)
    return _run(options)


def _compile(markdown: bool) -> int:
    os.environ.pop("TRITON_INTERPRET", None)
    from benchmarks.gpu.compiled import compile_all, table

    found = compile_all()
    print(table(found) if markdown else "\n".join(each.line for each in found))
    faults = [fault for each in found for fault in each.faults()]
    print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


def _run(options: argparse.Namespace) -> int:
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"
    from benchmarks.gpu import (
        attention_stages,
        delta_stages,
        engine_stages,
        grouped_stages,
        kernel_stages,
        life_stages,
        profile,
        variety_stages,
    )
    from benchmarks.gpu.run import Session, Stage, run

    session = Session(options.dry_run, options.out)
    if options.shapes:
        session.shapes = options.shapes
    session.batches, session.forms = options.batches or session.batches, options.forms or session.forms
    session.rows, session.only = options.rows or session.rows, options.only
    if options.command == "one":
        profile.run_case(session, options.case)
        return 0
    stages: list[Stage] = [
        ("probe", 1, kernel_stages.probe),
        ("correctness", 4, kernel_stages.correctness),
        ("attention", 0.5, attention_stages.attention_bits),
        ("mixture", 0.5, grouped_stages.mixture_correctness),
        ("adapters", 0.3, grouped_stages.adapter_correctness),
        ("delta", 0.3, delta_stages.delta_correctness),
        ("variety", 1.5, variety_stages.variety),
        ("drawn", 1.5, variety_stages.drawn),
        ("long_prompts", 0.7, variety_stages.long_prompts),
        ("kernel_times", 5, kernel_stages.kernel_times),
        ("engine", 9, engine_stages.engine_speed),
        ("tokens", 1, engine_stages.tokens),
        ("peer", 4, engine_stages.peer),
        ("load", 3, engine_stages.load),
        ("fp8_cache", 1, life_stages.fp8_cache),
        ("sleep", 0.7, life_stages.sleep),
        ("step_kernels", 1, life_stages.step_kernels),
        ("profile", 2, profile.profile),
    ]
    if options.quick:
        first = ("probe", "engine", "kernel_times")
        stages = [stage for stage in stages if stage[0] not in ("peer", "profile")]
        stages.sort(key=lambda stage: first.index(stage[0]) if stage[0] in first else len(first))
    if options.stages:
        # Floors need the ceilings.
        stages = [stage for stage in stages if stage[0] in ("probe", *options.stages)]
    run(session, stages, options.minutes)
    failed = [name for name in session.results if name.endswith(" failed")]
    print(f"{options.out}: {options.out.stat().st_size / 1e3:.0f} kB; {', '.join(failed) or 'every stage ended well'}")
    return 1 if failed and options.dry_run else 0


sys.exit(main())
