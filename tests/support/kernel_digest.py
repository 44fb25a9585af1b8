"""Whether the Triton kernels are those that all of their tests last ran on.

In Triton's interpreter these take minutes of a processor: the short profile runs those marked `sample`, and all of them
where the kernels, their tests or what the compile gate compiles differ from the digest in `tests/kernels/triton`.
`make kernels` runs them all and records the digest; `python tests/support/kernel_digest.py` does the latter alone, and
with `check` fails where they differ.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "kernels" / "triton" / "digest.txt"
COVERED = ("src/kvarn/kernels/triton/**/*.py", "tests/kernels/triton/*.py", "benchmarks/gpu/*variant*.py")


def digest() -> str:
    """A hash of the names and the contents of all that is covered."""
    found = hashlib.sha256()
    for path in sorted(path for pattern in COVERED for path in ROOT.glob(pattern)):
        found.update(f"{path.relative_to(ROOT).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()


def kernels_differ() -> bool:
    """Whether they differ from what was recorded."""
    return not RECORDED.exists() or RECORDED.read_text().strip() != digest()


if __name__ == "__main__":
    if sys.argv[1:] == ["check"]:
        sys.exit("Triton's kernels, their tests or variants have changed: run make kernels" if kernels_differ() else 0)
    RECORDED.write_text(digest() + "\n")
    sys.stdout.write(f"recorded in {RECORDED.relative_to(ROOT)}\n")
