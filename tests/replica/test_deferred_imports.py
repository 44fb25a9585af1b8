from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from kvarn.replica.imports import defer_unused_modules
defer_unused_modules()
import torch
module = sys.modules["torch._meta_registrations"]
asleep = type(module).__name__
compiled = torch.compile(lambda x: x[[0, 2]] @ x.T, backend="eager")
assert compiled(torch.ones(3, 4)).shape == (2, 3)
assert torch.empty(3, 4, device="meta")[[0, 2]].shape == (2, 4)
assert callable(module.meta_index_Tensor)
print(asleep, type(module).__name__)
"""


def test_what_is_deferred_sleeps_at_start_and_works_when_torch_traces():
    output = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=120)
    assert output.stdout.split() == ["_DeferredModule", "module"]
