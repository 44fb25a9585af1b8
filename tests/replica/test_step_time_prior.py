"""What an engine expects of its steps before the first one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import kvarn
from kvarn.clock.virtual import VirtualClock
from kvarn.config.model import ModelConfig
from kvarn.costs.decoder import DecoderCosts
from kvarn.costs.roofline import Ceilings
from kvarn.costs.step_times import StepShape
from kvarn.engine.step_time import StepTimeModel
from kvarn.kernels.linear import Norm
from kvarn.replica.server.build import build_service
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.server.step_time_prior import EFFICIENCY, expected_steps, product_speeds
from kvarn.replica.spec import ReplicaSpec

COSTS = DecoderCosts(
    dense_weights=7e9,
    expert_weights=0,
    num_experts=0,
    experts_per_token=0,
    head_weights=0.5e9,
    bits=8,
    head_bits=8,
    kv_bytes_per_token=131_072,
    operations_per_pair=524_288,
)
SPEEDS = Ceilings(bytes_per_s=25e9, operations_per_s=300e9)


class SlowProduct:
    """Reads its weight at 1 MB/s whatever the number of rows."""

    out_features, in_features, nbytes = 20, 10, 20_000

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.rows_multiplied: list[int] = []

    def __call__(
        self, x: torch.Tensor, *, norm: Norm | None = None, add_to: torch.Tensor | None = None
    ) -> torch.Tensor:
        self.rows_multiplied.append(len(x))
        self._clock.sleep(0.02)
        return x.new_zeros(len(x), self.out_features)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(ids), self.in_features)


def test_a_lone_decode_is_expected_to_take_its_bytes_and_a_prompt_its_operations():
    steps = expected_steps(COSTS, SPEEDS)
    decode = next(s for shape, s in steps if (shape.decode_rows, shape.decode_context) == (1, 64))
    assert decode == pytest.approx((7.5e9 + 64 * 131_072) / 25e9 / EFFICIENCY)
    prompt = next(s for shape, s in steps if (shape.prefill_tokens, shape.prefill_pairs) == (64, 64 * 65 / 2))
    assert prompt == pytest.approx((2 * (64 * 7e9 + 0.5e9) + 64 * 65 / 2 * 524_288) / 300e9 / EFFICIENCY)


@pytest.mark.parametrize("speeds", [SPEEDS, Ceilings(200e9, 5e12), Ceilings(5e9, 10e9)])
def test_the_step_time_model_can_hold_what_is_expected(speeds: Ceilings):
    """The floor is the larger of two, the model is a sum: it must come near all the same."""
    steps = expected_steps(COSTS, speeds)
    model = StepTimeModel(expected=steps)
    for shape, seconds in steps:
        assert model.predict(shape) == pytest.approx(seconds, rel=0.5)


def test_products_are_timed_on_some_weights_until_the_time_is_spent(monkeypatch: pytest.MonkeyPatch):
    clock = VirtualClock()
    monkeypatch.setattr("kvarn.replica.server.step_time_prior.SYSTEM_CLOCK", clock)
    products = [SlowProduct(clock) for _ in range(50)]
    speeds = product_speeds(products, torch.float32)
    assert [product.rows_multiplied for product in products if product.rows_multiplied] == [[1, 64]] * 2
    assert speeds.bytes_per_s == pytest.approx(1e6)
    assert speeds.operations_per_s == pytest.approx(50 * 2 * 64 * 20 * 10)


@pytest.mark.parametrize("kernels", ["torch", "auto"])
def test_an_engine_predicts_its_steps_before_the_first_one(kernels: str):
    config = ModelConfig(name="demo", path="kvarn-demo", kernels=kernels, kv_cache_gib=0.1)
    directory = Path(kvarn.__file__).parent / "assets" / "kvarn-demo"
    spec = ReplicaSpec(model=config.model_dump_json(), directory=str(directory))
    service = build_service(spec, lambda stage, fraction: None)
    assert isinstance(service, GenerateService)
    step_time = service._core.scheduler.step_time
    service.shutdown()
    assert "time products" in service.card.start_s
    one, many = StepShape(decode_rows=1, decode_context=100), StepShape(prefill_tokens=1024, prefill_pairs=524_800)
    assert 0 < step_time.predict(one) < step_time.predict(many) < 60
