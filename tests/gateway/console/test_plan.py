"""The planner for whoever looks at the console: a config.json comes from a client, so it is bounded from outside."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from kvarn.gateway.planning import PlanningPool
from kvarn.planner.request import PlanRequest
from kvarn.sandbox.process import SandboxLimits
from kvarn.store.owner import Role, Scopes
from kvarn.text.json_file import read_json
from kvarn.wire.openai.errors import ApiError

URL = "/console/api/plan"
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def with_config(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's model has a config.json that the planner knows the kind of."""
    path = server.served["tiny"].directory / "config.json"
    monkeypatch.setattr(
        "kvarn.gateway.console.api.plan.read_json", lambda asked, **_: CONFIG if asked == path else read_json(asked)
    )


def error_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_choices_have_devices_with_dated_prices_presets_and_kinds_of_traffic(client: httpx.Client) -> None:
    told = client.get(URL).json()
    assert "tiny" in told["served"] and "Qwen/Qwen3-8B" in told["presets"]
    h100 = next(each for each in told["devices"] if each["name"] == "h100")
    assert h100["memory_gb"] == 80 and h100["price"] > 0 and h100["price_date"].startswith("20")
    agentic = next(each for each in told["traffic"] if each["name"] == "agentic")
    assert agentic["cached_share"] > 0.9 > agentic["output_tokens"] / agentic["input_tokens"]


def test_a_plan_for_a_pasted_config_and_for_a_served_model(client: httpx.Client, with_config: None) -> None:
    asked = {"model": CONFIG, "name": "mine", "devices": ["l4"], "traffic": {"rate_rps": 3, "cached_share": 0.2}}
    plan = client.post(URL, json=asked).json()
    assert plan["model"] == "mine" and plan["candidates"][0]["layout"]["device"] == "l4"
    assert all(part["quantity"]["value"] >= 0 for part in plan["candidates"][0]["memory"])
    served = client.post(URL, json=asked | {"model": "tiny", "name": ""}).json()
    assert served["model"] == "tiny" and served["candidates"][0]["memory"] == plan["candidates"][0]["memory"]
    page = client.post(f"{URL}/page", json=asked)
    assert page.headers["content-type"].startswith("text/html") and "attachment" in page.headers["content-disposition"]
    assert "<svg" in page.text


def test_what_cannot_be_planned_is_told(client: httpx.Client) -> None:
    assert "no/such" in error_of(client.post(URL, json={"model": "no/such"}))["message"]
    assert (
        "vocab_size" in error_of(client.post(URL, json={"model": {"architectures": ["LlamaForCausalLM"]}}))["message"]
    )
    assert "abacus" in error_of(client.post(URL, json={"model": CONFIG, "devices": ["abacus"]}))["message"]
    assert (
        error_of(client.post(URL, json={"model": CONFIG, "traffic": {"rate_rps": -1}}))["param"] == "traffic.rate_rps"
    )
    assert error_of(client.post(URL, json={"model": CONFIG, "devices": ["h100"] * 33}))["param"] == "devices"


def test_no_file_of_the_server_is_read_by_its_path(client: httpx.Client, tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "neither" in error_of(client.post(URL, json={"model": str(tmp_path)}))["message"]


def test_a_served_model_is_planned_for_whose_key_may_ask_it(server: Any, with_config: None) -> None:
    scopes = Scopes(models=("other",))
    with server.add_tenant("plan-other", role=Role.MEMBER, scopes=scopes) as other:
        assert "tiny" not in other.get(URL).json()["served"]
        assert "neither" in error_of(other.post(URL, json={"model": "tiny"}))["message"]


async def test_a_plan_that_takes_too_long_is_given_up_and_the_next_one_is_made() -> None:
    pool = PlanningPool(SandboxLimits(timeout_s=0.02, memory_bytes=512 * 2**20))
    try:
        with pytest.raises(ApiError, match=r"more than 0\.1 s of a processor"):
            await pool.plan("a", PlanRequest(model=CONFIG, devices=("h100", "h200", "l4", "a100", "b200")), "json")
        with pytest.raises(ApiError, match="no device"):
            await pool.plan("a", PlanRequest(model=CONFIG, devices=("abacus",)), "json")
    finally:
        await pool.close()
