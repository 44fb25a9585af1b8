"""The documentation is true: generated pages are current, links lead somewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_house_checks_find_nothing():
    done = subprocess.run([sys.executable, "docs/checks.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
