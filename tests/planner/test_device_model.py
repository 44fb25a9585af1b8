"""The device model beside measured steps: its stated error holds, and the linear form stays close to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.planner_accuracy import FITTED, JUDGED, Row, errors, on_device

from kvarn.costs.step_times import StepShape
from kvarn.planner.answer import Layout
from kvarn.planner.device_model import DeviceModel
from kvarn.planner.devices import device_table
from kvarn.planner.efficiency import prompt_error, step_error
from kvarn.planner.errors import PlanError
from kvarn.planner.lengths import Lengths, Workload
from kvarn.planner.memory import decoder_costs
from kvarn.planner.models import find_model
from kvarn.planner.sizing import usual_steps


def device_model(name: str, device: str = "h100", **layout: object) -> DeviceModel:
    """A preset on a device."""
    key, row = device_table().find(device)
    model = find_model(name)
    costs = decoder_costs(model, model.forms("gpu"), "bfloat16")
    return DeviceModel(row, Layout(device=key, **layout), costs, model.spec)  # type: ignore[arg-type]


def decode(rows: int, context: int = 1000) -> StepShape:
    return StepShape(decode_rows=rows, decode_context=rows * context)


def test_the_stated_error_is_the_largest_of_decode_steps_that_the_model_was_not_fitted_to():
    judged = [abs(error) for row, _, error in errors(JUDGED) if row.batch]
    assert max(judged) <= step_error(device_table().devices["h200"], 1).value + 0.005


def test_the_stated_error_of_prompts_is_the_largest_of_all_that_were_timed():
    timed = [abs(error) for row, _, error in (*errors(JUDGED), *errors(FITTED)) if not row.batch]
    assert max(timed) <= prompt_error(step_error(device_table().devices["h200"], 1)).value + 0.005


def test_fitted_steps_are_close():
    found = sorted(abs(error) for _, _, error in errors(FITTED))
    assert found[len(found) // 2] <= 0.06


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "Llama-3.1-70B", "Qwen3-30B-A3B", "gpt-oss-20b", "DeepSeek-V3"])
def test_the_linear_form_follows_the_device_model(name: str):
    model = device_model(name, tensor_parallel=8)
    steps = list(usual_steps(Workload(Lengths((1024.0,)), Lengths((256.0,))), 256))
    assert model.fit_error(model.step_times(steps), steps) < 0.2


def test_a_step_of_more_ranks_reads_less_and_exchanges_more():
    one, four = device_model("Llama-3.1-70B"), device_model("Llama-3.1-70B", tensor_parallel=4)
    assert four.step(decode(8)).reading == pytest.approx(one.step(decode(8)).reading / 4)
    assert four.step(decode(8)).links > 0 == one.step(decode(8)).links
    assert four.seconds(decode(8)) < one.seconds(decode(8))


def test_a_window_bounds_what_a_step_reads_of_the_cache():
    model = device_model("gpt-oss-20b")
    short, long = model.step(decode(1, 128)).cache, model.step(decode(1, 12_800)).cache
    assert long < 60 * short  # half of the layers see 128 tokens


def test_a_mixture_reads_more_experts_the_more_tokens_there_are():
    model = device_model("Qwen3-30B-A3B")
    assert model.step(decode(64)).reading > 4 * model.step(decode(1)).reading


def test_decode_turns_compute_bound_at_hundreds_of_sequences():
    batch = device_model("Qwen/Qwen3-8B").compute_bound_batch()
    assert 150 < batch < 400
    step = device_model("Qwen/Qwen3-8B").step(decode(round(batch)))
    assert step.products >= step.reading


def test_no_step_is_faster_than_its_floor():
    for row in FITTED:
        model = on_device(row)
        for rows in (1, 32, 256):
            assert model.seconds(decode(rows)) > model.floor_s(decode(rows))


def test_rows_name_what_was_measured():
    assert Row("h100", "8B", "fp8", 32, 0.006).name == "8B fp8, decode, 32"


def test_a_users_own_device_needs_a_source_and_a_date_for_each_cell(tmp_path: Path):
    cell = "{ value = 100, source = 'quote', date = 2026-11-01, kind = 'vendor' }"
    file = tmp_path / "devices.toml"
    file.write_text(f"[mine]\nname = 'Mine'\nkind = 'gpu'\nmemory_gb = {cell}\nbandwidth_gb_s = {cell}\n")
    assert device_table().with_file(file).find("MINE")[1].memory_bytes == 100e9
    file.write_text(file.read_text() + "price_per_hour = { value = 1.0, source = 'quote', kind = 'vendor' }\n")
    with pytest.raises(PlanError, match="a date is not used"):
        device_table().with_file(file)
    file.write_text(file.read_text().replace("value = 100", "value = 0"))
    with pytest.raises(PlanError, match="above 0, not 0"):
        device_table().with_file(file)
    with pytest.raises(PlanError, match="cannot read"):
        device_table().with_file(tmp_path / "missing.toml")
