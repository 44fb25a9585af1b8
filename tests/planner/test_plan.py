"""Plans as a buyer reads them: enough replicas, what they cost, and why."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.config.model import ModelConfig
from kvarn.planner import plan
from kvarn.planner.answer import Plan
from kvarn.planner.devices import device_table
from kvarn.planner.errors import PlanError
from kvarn.planner.models import find_model
from kvarn.planner.money import per_million
from kvarn.planner.replicas import table_replica
from kvarn.planner.report import html_report, quantities_of
from kvarn.planner.request import PlanRequest
from profiles import effort


def request(model: str = "Qwen/Qwen3-8B", **fields: Any) -> PlanRequest:
    """A small question: one device, weights as stored, unless it is told otherwise."""
    values: dict[str, Any] = {
        "model": model,
        "traffic": {"rate_rps": 5, "input_tokens": 1155, "output_tokens": 211},
        "slo": {"ttft_s": 0.5, "tpot_s": 0.05},
        "choices": {
            "weights": ["plain"],
            "kv_dtypes": ["bfloat16"],
            "tensor_parallel": [1, 2],
            "disaggregation": False,
        },
    }
    for name, value in fields.items():
        values[name] = values.get(name, {}) | value if isinstance(value, dict) else value
    return PlanRequest.model_validate(values)


@pytest.fixture(scope="module")
def compared() -> Plan:
    """Two devices, an API's price, all choices."""
    choices = {"weights": None, "kv_dtypes": None, "tensor_parallel": None, "disaggregation": True}
    return plan(request(devices=["h100", "h200"], money={"api_price": [0.15, 0.60]}, choices=choices))


def test_an_hour_at_2_95_and_2500_tokens_a_second_is_0_328_dollars_a_million():
    assert per_million(2.95, 2500) == pytest.approx(0.328, abs=5e-4)


def test_the_decode_floor_of_an_8b_model_on_an_h200_is_its_weights_over_the_bandwidth():
    found = plan(request("Llama-3.1-8B", devices=["h200"])).candidates[0]
    whole = 16.06e9 / 4.8e12  # 3.35 ms, embedding and all
    assert 0.9 * whole < found.decode_floor.value < 1.03 * whole
    assert found.decode_floor.value < found.decode_step[0].quantity.value


def test_users_of_an_h100_are_those_of_its_memory_but_for_weights_driver_and_a_step():
    found = plan(request("Llama-3.1-8B", max_context_length=8192)).candidates[0]
    assert 45 <= found.users.value <= 52  # 0.9 x 80 GB less weights alone would hold 52
    assert found.kv_tokens.value <= 426_788
    assert sum(part.quantity.value for part in found.memory) == pytest.approx(0.9 * 80e9, rel=1e-6)


def test_candidates_are_ranked_by_cost_and_say_why(compared: Plan):
    served = [each.money.total.value for each in compared.candidates if each.is_served]
    assert served == sorted(served)
    assert len(compared.candidates) >= 3
    assert all(each.reasons for each in compared.candidates)
    assert "cheapest" in compared.candidates[0].reasons[0]
    assert {each.layout.device for each in compared.candidates} == {"h100", "h200"}


def test_each_candidate_meets_the_targets_with_its_headroom(compared: Plan):
    for each in compared.candidates:
        assert each.ttft.value <= 0.5
        assert each.tpot.value <= 0.05
        assert all(pool.capacity_rps.value >= 5 / 0.8 * 0.999 for pool in each.pools)


def test_each_number_tells_its_formula_or_source(compared: Plan):
    for name, quantity in quantities_of(compared, compared.candidates[0]):
        assert quantity.formula or quantity.source or quantity.assumption, name
        assert quantity.error is None or quantity.error >= 0


def test_the_settings_of_a_candidate_are_a_models_configuration(compared: Plan):
    for each in compared.candidates:
        config = ModelConfig.model_validate(each.settings)
        assert config.tensor_parallel_size == each.layout.tensor_parallel


def test_the_replica_of_a_candidate_is_what_the_simulator_gets_for_its_settings():
    found = plan(request()).candidates[0]
    replica = table_replica(find_model("Qwen/Qwen3-8B"), "h100", ModelConfig.model_validate(found.settings))
    assert (replica.kv_blocks, replica.block_bytes) == (found.replica.kv_blocks, found.replica.block_bytes)
    for rows in (1, 64):
        mine, its = found.replica.step_times.decode_s(rows, rows * 1200), replica.step_times.decode_s(rows, rows * 1200)
        assert mine == pytest.approx(its, rel=0.1)  # made linear around other traffic


def test_break_even_is_where_the_api_costs_as_much_as_the_devices(compared: Plan):
    money = compared.candidates[0].money
    assert money.break_even_tokens_per_day is not None
    mean = 1155 + 211
    a_token = (1155 * 0.15 + 211 * 0.60) / 1e6 / mean
    assert money.break_even_tokens_per_day.value * a_token == pytest.approx(24 * money.total.value, rel=0.02)


def test_services_are_a_line_of_their_own(compared: Plan):
    money = compared.candidates[0].money
    assert money.services.value == pytest.approx(0.4 * money.devices.value)
    assert money.total.value == pytest.approx(money.devices.value + money.services.value)
    shares = money.per_million_input.value * 1155 + money.per_million_output.value * 211
    assert shares == pytest.approx(money.per_million_tokens.value * (1155 + 211), rel=0.02)


def test_weights_that_do_not_fit_are_refused_with_the_numbers():
    found = plan(request("Llama-3.1-70B", choices={"tensor_parallel": [1], "pipeline_parallel": [1]}))
    assert not found.candidates
    assert "141.1 GB" in found.rejected[0].reason
    assert "80 GB x 0.9" in found.rejected[0].reason


def test_a_model_that_fits_on_no_number_of_ranks_is_divided_into_stages():
    found = plan(request("Llama-3.1-70B", devices=["h100"], choices={"tensor_parallel": [2]}, slo={"ttft_s": 5}))
    assert {each.layout.pipeline_parallel for each in found.candidates} == {2}
    assert any("141.1 GB" in each.reason for each in found.rejected)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"slo": {"tpot_s": 0.001}}, "TPOT target of 1.0 ms"),
        ({"slo": {"ttft_s": 0.02}}, "more than the target of 20.0 ms"),
        ({"traffic": {"rate_rps": 10_000}, "choices": {"max_devices": 3}}, "more than 3 devices"),
    ],
)
def test_targets_out_of_reach_are_named(fields: dict[str, Any], words: str):
    found = plan(request(**fields))
    assert not found.candidates
    assert any(words in each.reason for each in found.rejected)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "Qwen/Qwen3-8C"}, "Qwen/Qwen3-8B"),
        ({"devices": ["h1000"]}, "h100"),
        ({"devices": ["mi355x"]}, "--price mi355x"),
        ({"devices": ["b300"]}, "--owned"),
        ({"training": {"jobs": ["sft-full-lora"]}}, "sft, dpo, ppo or grpo"),
    ],
)
def test_questions_that_cannot_be_answered_say_what_to_do(fields: dict[str, Any], words: str):
    with pytest.raises(PlanError, match=words):
        plan(request(**fields))


def test_a_given_price_goes_before_the_tables():
    found = plan(request(money={"prices": {"H100-SXM": 2.0}, "services_share": 0})).candidates[0]
    assert found.money.total.value == 2.0 * found.devices
    assert found.money.device_hour.source == "given"


def test_a_device_that_kvarn_does_not_run_on_is_ranked_after_those_it_does():
    found = plan(request(devices=["a100", "h100"], money={"prices": {"a100": 0.1}}))
    assert found.candidates[0].is_served
    last = found.candidates[-1]
    assert (last.layout.device, last.is_served) == ("a100", False)
    assert "no kernels" in " ".join(last.reasons)


def test_a_pair_of_engines_is_run_where_one_machine_has_room_for_both():
    choices = {"disaggregation": True, "weights": ["fp8"], "tensor_parallel": [4, 8], "pipeline_parallel": [1]}
    found = plan(request("Llama-3.1-70B", choices=choices, traffic={"rate_rps": 1}, slo={"ttft_s": 5, "tpot_s": 0.2}))
    pairs = {each.layout.devices: each for each in found.candidates if len(each.pools) == 2}
    assert pairs[4].is_served
    found = plan(request("DeepSeek-V3", devices=["h200"], choices=choices, slo={"ttft_s": 5, "tpot_s": 0.2}))
    (pair,) = (each for each in found.candidates if len(each.pools) == 2)
    assert (pair.devices, pair.is_served) == (16, False)
    assert "on one machine" in " ".join(pair.reasons)


def test_a_cache_in_main_memory_lets_fewer_prompts_be_computed():
    traffic = {"rate_rps": 20, "input_tokens": 20_000, "cached_share": 0.9, "cached_tokens": 3e7}
    slow = {"ttft_s": 5.0, "tpot_s": 0.2}
    devices = []
    for gib in (0, 400):
        choices = {"host_gib": gib, "tensor_parallel": [1]}
        devices.append(plan(request(traffic=traffic, slo=slow, choices=choices)).candidates[0].devices)
    without, with_tier = devices
    assert with_tier < without


@pytest.mark.parametrize("context", [None, 2048])
def test_long_requests_are_told_where_some_are_refused(context: int | None):
    found = plan(request("Llama-2-7b", max_context_length=context, slo={"ttft_s": 9}))
    assert any(f"more than the longest context of {context or 4096:,}" in note for note in found.notes)


@pytest.mark.parametrize(("tokens", "context"), [(6000, None), (3000, 2048)])
def test_traffic_whose_mean_request_is_refused_has_no_plan(tokens: int, context: int | None):
    with pytest.raises(PlanError, match=f"longest context of {context or 4096:,}"):
        plan(request("Llama-2-7b", max_context_length=context, traffic={"input_tokens": tokens}))


def test_a_checkpoint_that_is_widened_is_told():
    assert any("mxfp4 weights are widened" in note for note in plan(request("gpt-oss-20b")).notes)
    assert not any("widened" in note for note in plan(request()).notes)


def test_of_each_device_the_layout_that_is_nearest_to_a_fit_is_told_first():
    devices, choices = ["l4", "a10g"], {"tensor_parallel": [1, 8], "pipeline_parallel": [1]}
    found = plan(request("Llama-3.1-405B", devices=devices, choices=choices)).rejected
    assert [(each.layout.device, each.layout.devices) for each in found] == [
        ("l4", 8),
        ("a10g", 8),
        ("l4", 1),
        ("a10g", 1),
    ]


def test_more_replicas_than_a_server_has_are_told():
    many = plan(request(traffic={"rate_rps": 10_000}, choices={"tensor_parallel": [1]})).candidates[0]
    told = " ".join(many.reasons)
    assert f"{-(-many.devices // 256)} servers" in told
    assert f"{-(-many.devices // 8)} machines of 8 devices" in told
    assert many.settings["replicas"] == 256


def test_a_calibration_goes_before_the_device_model():
    table = plan(request()).candidates[0]
    measured = msgspec.structs.replace(
        table.replica, step_times=table.replica.step_times.scaled(3), kv_blocks=5000, error=0.07
    )
    found = plan(request(calibration=msgspec.to_builtins(measured))).candidates[0]
    assert found.replica == measured
    assert {part.quantity.error for part in (*found.decode_step, *found.prefill)} == {0.07}
    assert found.tpot.value > 2 * table.tpot.value
    assert found.kv_tokens.value == 5000 * 16
    assert {part.name for part in found.decode_step} == {"fixed", "rows", "KV cache"}
    with pytest.raises(PlanError, match="kvarn bench profile"):
        plan(request(calibration={"kv_blocks": 5}))
    with pytest.raises(PlanError, match="kvarn bench profile"):
        plan(request(calibration=msgspec.to_builtins(msgspec.structs.replace(measured, kv_blocks=0))))


def test_training_jobs_name_the_fewest_devices():
    found = plan(request("Llama-3.1-8B", training={"jobs": ["sft-lora", "ppo"]}))
    small, large = found.training
    assert small.devices == 1 < large.devices
    assert large.peak is not None
    assert large.peak.value <= 80e9


def test_a_plan_is_the_same_after_json(compared: Plan):
    assert msgspec.json.decode(msgspec.json.encode(compared), type=Plan) == compared


def test_the_page_opens_offline_and_shows_candidates_plots_and_reasons(compared: Plan):
    page = html_report(compared)
    assert page.count("<svg") == 3
    assert "<script" not in page
    assert "src=" not in page
    assert "href=" not in page
    for words in (compared.candidates[0].name, "Each number", "break-even", "prefers-color-scheme: dark"):
        assert words in page


def test_a_plan_without_candidates_has_a_page_with_the_reasons():
    found = plan(request("Llama-3.1-70B", choices={"tensor_parallel": [1]}))
    assert "141.1 GB" in html_report(found)


@settings(max_examples=effort(4, 60), deadline=None)
@given(rates=st.lists(st.floats(0.1, 500), min_size=2, max_size=2), ttft=st.floats(0.2, 3), tpot=st.floats(0.02, 0.2))
def test_more_traffic_never_needs_fewer_replicas(rates: list[float], ttft: float, tpot: float):
    low, high = sorted(rates)
    counts = []
    for rate in (low, high):
        asked = request(
            traffic={"rate_rps": rate}, slo={"ttft_s": ttft, "tpot_s": tpot}, choices={"tensor_parallel": [1]}
        )
        found = plan(asked).candidates
        counts.append(found[0].devices if found else 10**9)
    assert counts[0] <= counts[1]


def test_the_table_of_devices_names_source_and_date_of_each_cell():
    for device in device_table().devices.values():
        for name in device.__struct_fields__:
            cell = getattr(device, name)
            if hasattr(cell, "date"):
                assert cell.source, (device.name, name)
                assert cell.date.year >= 2026
                assert cell.kind in ("vendor", "measured")
