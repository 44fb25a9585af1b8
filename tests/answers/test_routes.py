"""Routes through the HTTP door: which model answers, what stays the same, what the client and the metrics hear."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from fake_replica import answer_text
from foreign_server import foreign_gateway
from kvarn.config.routes import RouteConfig
from kvarn.costs.step_times import StepTimes
from kvarn.replica.client.protocol import ReplicaState
from kvarn.store.models import UsageEvent
from kvarn.store.owner import Scopes
from kvarn.wire.messages import EngineStats

CHAT = "/v1/chat/completions"
TIMES = StepTimes(fixed_s=0.01, prefill_token_s=1e-4, prefill_pair_s=0, decode_row_s=1e-3, decode_token_s=0)
ROUTES = [
    {
        "name": "chat",
        "targets": [{"model": "large", "weight": 3}, {"model": "next", "weight": 1}],
        "fallback": [{"model": "small", "on": ["not_ready", "error"]}],
    },
    {
        "name": "ruled",
        "targets": [{"model": "large"}],
        "rules": [
            {"model": "small", "max_prompt_tokens": 50, "tools": False, "reasoning_effort": ["none", "low"]},
            {"model": "next", "predicted_ttft_above_s": 5},
        ],
    },
]


@pytest.fixture
def routed(checkpoint: Path, tmp_path: Path) -> Iterator[Any]:
    models = [{"name": name, "path": name} for name in ("large", "next", "small")]
    with foreign_gateway({"models": models, "routes": ROUTES}, checkpoint, tmp_path) as gateway:
        for name, model in gateway.served.items():
            (replica,) = model.replicas.values()
            replica.answer = lambda request, index, name=name: answer_text(f"from {name}")
        with gateway.client() as client:
            gateway.http = client
            yield gateway


def body(model: str = "chat", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], **fields}


def replica_of(gateway: Any, model: str) -> Any:
    (replica,) = gateway.served[model].replicas.values()
    return replica


def test_users_are_shared_among_the_targets_and_each_stays_with_one(routed):
    arms: dict[str, str] = {}
    for attempt in range(2):
        for number in range(20):
            answer = routed.http.post(CHAT, json=body(user=f"user-{number}", stream=bool(attempt)))
            assert answer.headers["x-kvarn-route"] == "chat"
            arm = answer.headers["x-kvarn-arm"]
            assert arms.setdefault(f"user-{number}", arm) == arm and f'"model":"{arm}"' in answer.text
    counts = Counter(arms.values())
    assert counts.keys() == {"large", "next"} and counts["large"] > counts["next"]
    page = routed.http.get("/metrics").text
    assert f'kvarn_route_requests_total{{model="next",reason="weight",route="chat"}} {2.0 * counts["next"]}' in page


def test_every_api_knows_routes(routed):
    message = routed.http.post("/v1/messages", json=body(max_tokens=50))
    response = routed.http.post("/v1/responses", json={"model": "chat", "input": "hello"})
    cut = routed.http.post("/v1/responses", json={"model": "chat", "input": "hello", "truncation": "auto"})
    completion = routed.http.post("/v1/completions", json={"model": "chat", "prompt": "hello"})
    counted = routed.http.post("/v1/messages/count_tokens", json=body())
    for answer in (message, response, cut, completion, counted):
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-kvarn-arm"] in ("large", "next")
    listed = [model["id"] for model in routed.http.get("/v1/models").json()["data"]]
    assert listed[-2:] == ["chat", "ruled"] and routed.http.get("/v1/models/chat").json()["parent"] == "large"


def test_weights_change_while_the_server_runs(routed):
    changed = RouteConfig.model_validate({**ROUTES[0], "targets": [{"model": "next"}]})
    routed.gateway.catalog.routes.replace([changed])
    arms = {routed.http.post(CHAT, json=body(user=str(user))).headers["x-kvarn-arm"] for user in range(10)}
    assert arms == {"next"}
    assert routed.http.post(CHAT, json=body("ruled")).status_code == 404


@pytest.mark.parametrize(
    ("fields", "model"),
    [
        ({"reasoning_effort": "low"}, "small"),
        ({"reasoning_effort": "high"}, "large"),
        ({}, "large"),
        ({"reasoning_effort": "low", "messages": [{"role": "user", "content": "x" * 240}]}, "large"),
    ],
)
def test_short_simple_requests_go_to_the_small_model(routed, fields, model):
    answer = routed.http.post(CHAT, json=body("ruled", **fields)).json()
    assert answer["model"] == model and answer["choices"][0]["message"]["content"] == f"from {model}"


def test_a_model_that_would_be_slow_is_left_out(routed):
    replica_of(routed, "large").stats = EngineStats(step_times=TIMES, step_s=0.01, running=1, prefill_tokens=10_000)
    assert routed.http.post(CHAT, json=body("ruled")).json()["model"] == "large", "a second's prompts wait"
    replica_of(routed, "large").stats = EngineStats(step_times=TIMES, step_s=0.01, running=1, prefill_tokens=200_000)
    assert routed.http.post(CHAT, json=body("ruled")).json()["model"] == "next", "twenty seconds'"


@pytest.mark.parametrize("stream", [True, False])
def test_the_ladder_answers_where_the_chosen_model_is_not_ready(routed, stream):
    for name in ("large", "next"):
        replica_of(routed, name).state = ReplicaState.DOWN
    answer = routed.http.post(CHAT, json=body(stream=stream))
    assert answer.status_code == 200 and '"model":"small"' in answer.text
    assert answer.headers["x-kvarn-fallback"].startswith("not_ready; from=")
    replica_of(routed, "small").state = ReplicaState.DOWN
    refused = routed.http.post(CHAT, json=body(stream=stream))
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "model_not_ready"
    assert "'small'" not in refused.text, "the model that was asked for is named"


def test_a_key_of_a_route_needs_no_scope_for_its_models(routed):
    scoped = {"routes": ("chat",), "models": ("large", "next", "small")}
    for name, models in scoped.items():
        routed.add_tenant(name, scopes=Scopes(models=models)).close()
    by_route, by_model = ({"authorization": f"Bearer {name}"} for name in scoped)
    assert routed.http.post(CHAT, json=body(), headers=by_route).status_code == 200
    assert routed.http.post(CHAT, json=body("large"), headers=by_route).status_code == 403
    assert routed.http.post(CHAT, json=body("ruled"), headers=by_route).status_code == 403
    assert routed.http.post(CHAT, json=body(), headers=by_model).status_code == 403
    replica_of(routed, "large").state = replica_of(routed, "next").state = ReplicaState.DOWN
    assert "from small" in routed.http.post(CHAT, json=body(), headers=by_route).text
    listed = routed.http.get("/v1/models", headers=by_route).json()["data"]
    assert [model["id"] for model in listed] == ["chat"]


def test_the_ledger_has_the_route_and_the_model_that_answered(routed, wait_for):
    replica_of(routed, "large").state = ReplicaState.DOWN
    replica_of(routed, "next").state = ReplicaState.DOWN
    with routed.add_tenant("payer", key_id="key_1") as tenant:
        for model in ("chat", "small"):
            assert tenant.post(CHAT, json=body(model)).json()["model"] == "small"
    organization = routed.authenticator.principals["payer"].organization_id

    async def read() -> list[tuple[str, str]]:
        async with routed.gateway.store.reading() as session:
            query = select(UsageEvent.route, UsageEvent.model).where(UsageEvent.organization_id == organization)
            return sorted(tuple(row) for row in await session.execute(query))

    wait_for(lambda: len(routed.do(read())) == 2, "the events")
    assert routed.do(read()) == [("", "small"), ("chat", "small")]


def test_a_tenant_is_pinned_to_a_model(routed):
    routed.add_tenant("pinned").close()
    organization = routed.authenticator.principals["pinned"].organization_id
    pin = {"organization": organization, "model": "small"}
    routed.gateway.catalog.routes.replace([RouteConfig.model_validate({**ROUTES[0], "pins": [pin]})])
    for user in range(5):
        headers = {"authorization": "Bearer pinned"}
        assert routed.http.post(CHAT, json=body(user=str(user)), headers=headers).json()["model"] == "small"
        assert routed.http.post(CHAT, json=body(user=str(user))).json()["model"] != "small"


def test_a_model_that_hangs_is_given_up_for_another(checkpoint, tmp_path):
    fallback = [{"model": "small", "on": ["timeout"]}]
    models = [
        {"name": "slow", "path": "slow", "timeouts": {"first_token_s": 0.3}, "fallback": fallback},
        {"name": "small", "path": "small"},
        {"name": "alone", "path": "alone", "timeouts": {"total_s": 0.3}},
    ]
    with foreign_gateway({"models": models}, checkpoint, tmp_path) as gateway, gateway.client() as client:
        replica_of(gateway, "small").answer = lambda request, index: answer_text("quick")
        for name in ("slow", "alone"):
            replica_of(gateway, name).step_s = 3600
        answer = client.post(CHAT, json=body("slow"))
        assert answer.json()["model"] == "small" and answer.headers["x-kvarn-fallback"] == "timeout; from=slow"
        given_up = client.post(CHAT, json=body("alone"))
        assert (given_up.status_code, given_up.json()["error"]["code"]) == (504, "timeout")
        assert not replica_of(gateway, "slow").running and not replica_of(gateway, "alone").running


def test_a_model_that_fails_often_is_left_alone_for_a_while(checkpoint, tmp_path):
    breaker = {"min_requests": 3, "open_s": 600, "max_open_s": 600}
    models = [
        {"name": "large", "path": "large", "fallback": [{"model": "small"}], "load_shedding": True, "breaker": breaker},
        {"name": "small", "path": "small"},
    ]
    for model in models:
        model["failover"] = {"max_losses": 0}
    with foreign_gateway({"models": models}, checkpoint, tmp_path) as gateway, gateway.client() as client:
        large, small = (replica_of(gateway, name) for name in ("large", "small"))
        small.answer = lambda request, index: answer_text("here")

        large.lose_after = 0
        answers = [client.post(CHAT, json=body("large")) for _ in range(6)]
        assert [answer.json()["model"] for answer in answers] == ["small"] * 6
        assert len(large.submitted) == 3 and len(small.submitted) == 6
        large.lose_after = None
        assert client.post(CHAT, json=body("large")).json()["model"] == "small", "its breaker is open"
