"""Costs are for planners and simulators, which run without torch."""

from __future__ import annotations

import subprocess
import sys


def test_costs_import_no_torch() -> None:
    code = "import sys, kvarn.costs.decoder, kvarn.costs.roofline; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
