"""Measure the machine's ceilings, in a process of their own: neither threads nor memory stay with the load generator.

Usage: python -m benchmarks.peers.limits
"""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec

from benchmarks.peers.engines.base import Precision
from benchmarks.peers.records import Limits
from benchmarks.peers.workshop import ROOT, cores

TIMEOUT_S = 120.0


class LimitsError(Exception):
    """The ceilings could not be measured; the message says why."""


def measured_limits() -> Limits:
    """The ceilings of all cores this process may use. Raises LimitsError."""
    try:
        told = subprocess.run(
            [sys.executable, "-m", "benchmarks.peers.limits"],
            capture_output=True,
            cwd=ROOT,
            timeout=TIMEOUT_S,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        raise LimitsError(lines[-1] if lines else f"exit code {error.returncode}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise LimitsError(str(error)) from None
    return msgspec.convert(json.loads(told.stdout), Limits)


def main() -> None:
    """Measure and print."""
    import torch

    from kvarn.kernels.device.ceilings import operations_per_s, read_bytes_per_s

    torch.set_num_threads(len(cores()))
    integers = operations_per_s("int8")
    by_precision = {Precision.BF16: operations_per_s("float"), Precision.INT8: integers, Precision.INT4: integers}
    print(msgspec.json.encode(Limits(bytes_per_s=read_bytes_per_s(), operations_per_s=by_precision)).decode())


if __name__ == "__main__":
    main()
