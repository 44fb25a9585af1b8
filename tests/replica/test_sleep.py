"""A model of the compiled kernels that sleeps and wakes: its packed layers know the addresses of their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rank_services import build, requests, run
from tiny_checkpoints import make_decoder

pytest.importorskip("kvarn.kernels.cpu._native", reason="needs compiled kernels")


@pytest.mark.parametrize(
    "settings", [{}, {"quantization": "int4"}, {"tensor_parallel_invariant": True}], ids=["one call", "int4", "single"]
)
def test_a_model_with_biases_answers_with_the_same_bits_after_it_slept(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    make_decoder("llama", tmp_path)
    service = build(tmp_path, **settings)
    asked = requests(range(5, 90), 4, with_grammars=False, longest=20)
    before = run(service, asked)
    for _ in range(2):
        sleep = service.sleep
        assert sleep is not None
        service.shutdown()
        del service
        service = sleep().wake(lambda *_: None)
        assert run(service, asked) == before
    service.shutdown()
