"""`kvarn bench roofline`: every kind of step that is asked for is measured, or refused; none is waited for in vain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvarn.bench.roofline import Case, measure
from kvarn.cli.bench import app
from kvarn.costs.decoder import DecoderCosts
from kvarn.costs.roofline import Ceilings
from kvarn.engine.plan import StepPlan
from kvarn.worker.modelled import ModelledExecutor

COSTS = DecoderCosts(
    dense_weights=1000,
    expert_weights=0,
    num_experts=0,
    experts_per_token=0,
    head_weights=100,
    bits=16,
    head_bits=16,
    kv_bytes_per_token=10,
    operations_per_pair=1,
)


class RecordingExecutor(ModelledExecutor):
    """Keeps the plans."""

    def __init__(self, max_context_length: int, sequences: int) -> None:
        num_blocks = sequences * -(-max_context_length // 16) + 1
        super().__init__(num_blocks=num_blocks, max_context_length=max_context_length)
        self.plans: list[StepPlan] = []

    def submit(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        super().submit(plan)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("batch", "context", "steps"), [(1, 64, 1), (64, 64, 2), (300, 32, 4), (8, 1000, 16)])
def test_a_batch_is_measured_with_all_of_its_sequences_decoding(batch: int, context: int, steps: int):
    cases = [Case(batch, context), Case(0, 100)]
    executor = RecordingExecutor(max(case.longest(steps) for case in cases), batch)
    decode, prefill = measure(executor, COSTS, Ceilings(1e9, 1e9), cases, 1000, steps)
    decodes = [plan for plan in executor.plans if plan.num_tokens == len(plan.rows) == batch][-steps:]
    assert len(decodes) == steps
    read = sum(row.start + 1 for plan in decodes for row in plan.rows) / steps
    assert decode.work.kv_bytes == pytest.approx(10 * read, abs=10)
    assert read == pytest.approx(batch * context, rel=0.2)
    assert prefill.work == COSTS.prefill(100)
    assert [len(row.token_ids) for row in executor.plans[-1].rows] == [100]


def test_the_command_writes_what_it_measured(tmp_path: Path):
    file = tmp_path / "roofline.json"
    options = ["--batch", "2", "--context", "32", "--prompt", "48", "--steps", "2", "--json", str(file)]
    result = CliRunner().invoke(app, ["roofline", "kvarn-demo", *options])
    assert result.exit_code == 0, result.output
    assert "decode 2 x 32" in result.output
    points = json.loads(file.read_text())["points"]
    assert [point["case"] for point in points] == [{"batch": 2, "context": 32}, {"batch": 0, "context": 48}]
    assert all(min(point["floor_s"], point["step_s"]) > 0 for point in points)


def test_a_context_longer_than_the_models_is_refused():
    result = CliRunner().invoke(app, ["roofline", "kvarn-demo", "--context", "5000"])
    assert result.exit_code == 2
    assert "lower --context" in result.output


def test_fp8_weights_are_measured_where_something_multiplies_them_and_refused_elsewhere():
    options = ["--quantization", "fp8", "--batch", "1", "--context", "16", "--prompt", "16", "--steps", "1"]
    measured = CliRunner().invoke(app, ["roofline", "kvarn-demo", *options, "--kernels", "torch"])
    assert measured.exit_code == 0, measured.output
    assert "(float)" in measured.output and "kvarn-demo: fp8" in measured.output
    refused = CliRunner().invoke(app, ["roofline", "kvarn-demo", *options, "--kernels", "cpu"])
    assert refused.exit_code == 2 and "fp8 weights need the kernels of GPUs" in refused.output
