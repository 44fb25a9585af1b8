"""Costs and the modelled executor are for planners and simulators, which run without torch."""

from __future__ import annotations

import subprocess
import sys

MODULES = (
    "kvarn.costs.decoder, kvarn.costs.roofline, kvarn.costs.prefill_speed, kvarn.worker.modelled, kvarn.clock.virtual"
)


def test_planning_imports_no_torch() -> None:
    code = f"import sys, {MODULES}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
