"""The comparison of gateways runs: Kvarn's before the clock engine, and the clock engine alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.smoke
def test_both_ways_to_the_clock_engine_are_measured():
    command = [sys.executable, "-m", "benchmarks.proxies", "--only", "direct,kvarn", "--rounds", "1"]
    small = ["--seconds", "2", "--streams", "2", "--many", "4"]
    done = subprocess.run([*command, *small], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = dict(re.findall(r"^ +(direct|kvarn): TTFT ([\d.]+) ms; paced [\d,]+ tokens/s", done.stdout, re.MULTILINE))
    assert set(rows) == {"direct", "kvarn"}, done.stdout
    assert all(float(ttft) >= 20 for ttft in rows.values()), "a step takes 20 ms, and the first token comes after one"
