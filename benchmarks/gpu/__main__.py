"""`python -m benchmarks.gpu compile`: what the compiler makes of each kernel; needs no GPU."""

from __future__ import annotations

import argparse
import os
import sys


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    compiling = commands.add_parser("compile", help="compile every kernel for sm_90 and check its budgets")
    compiling.add_argument("--markdown", action="store_true", help="the table of docs/gpu.md")
    options = parser.parse_args()
    return _compile(options.markdown)


def _compile(markdown: bool) -> int:
    os.environ.pop("TRITON_INTERPRET", None)
    from benchmarks.gpu.compiled import compile_all, table

    found = compile_all()
    print(table(found) if markdown else "\n".join(each.line for each in found))
    faults = [fault for each in found for fault in each.faults()]
    print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


sys.exit(main())
