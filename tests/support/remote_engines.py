"""Engine processes that no gateway is parent of, as on another machine: `tests/fleet/engines/scripted_engine.py`."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from kvarn.replica.spec import ReplicaSpec


def run_engine(spec: ReplicaSpec) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "kvarn.replica.server", "scripted_engine"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(spec) + b"\n")
    process.stdin.flush()
    return process


def end_engine(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
