"""Budgets: made by administrators, seen by their organisation only, and true before the engine is asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from kvarn.config.platform import MeteringConfig, PriceConfig
from kvarn.store.owner import Role

BUDGETS = "/v1/organization/budgets"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}


@pytest.fixture
def server(serve_stored: Any) -> Iterator[Any]:
    """A gateway of its own on each database; a million tokens cost a thousand dollars."""
    price = PriceConfig(model="*", input_per_million=1000.0, output_per_million=1000.0)
    metering = MeteringConfig(budget_refresh_s=0.02, flush_interval_s=0.01, prices=(price,))
    with serve_stored(config={"metering": metering}) as made:
        yield made


@pytest.fixture
def tenant(server: Any) -> Iterator[httpx.Client]:
    with server.add_tenant("tenant", key_id="key_1") as client:
        yield client


def make(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post(BUDGETS, json={"unit": "tokens", "period": "month"} | fields)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


def ask(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post("/v1/chat/completions", json=CHAT | fields)


def test_a_budget_is_made_changed_listed_and_deleted(tenant):
    made = make(tenant, unit="cost", hard_limit=10.25, soft_limit=8)
    assert made == {
        "object": "organization.budget",
        "id": made["id"],
        "created_at": made["created_at"],
        "project_id": None,
        "unit": "cost",
        "currency": "usd",
        "period": "month",
        "hard_limit": 10.25,
        "soft_limit": 8.0,
        "spent": 0.0,
        "alerted_period": None,
    }
    other = make(tenant, hard_limit=1000)
    assert other["currency"] is None and other["hard_limit"] == 1000
    assert {each["id"] for each in tenant.get(BUDGETS).json()["data"]} == {made["id"], other["id"]}
    changed = tenant.post(f"{BUDGETS}/{made['id']}", json={"soft_limit": None}).json()
    assert (changed["hard_limit"], changed["soft_limit"]) == (10.25, None)
    assert tenant.get(f"{BUDGETS}/{made['id']}").json() == changed
    assert tenant.delete(f"{BUDGETS}/{made['id']}").json()["deleted"]
    assert tenant.get(f"{BUDGETS}/{made['id']}").status_code == 404
    assert [each["id"] for each in tenant.get(BUDGETS).json()["data"]] == [other["id"]]
    acts = {entry["type"] for entry in tenant.get("/v1/organization/audit_logs").json()["data"]}
    assert {"budget.created", "budget.updated", "budget.deleted"} <= acts


def test_what_is_spent_is_spent_for_all_and_nothing_is_asked_of_the_engine(server, tenant, wait_for):
    used = ask(tenant).json()["usage"]["total_tokens"]
    wait_for(lambda: make(tenant, soft_limit=10**9)["spent"] == used, "the usage to count in a new budget")
    budget = make(tenant, hard_limit=used)
    assert budget["spent"] == used
    wait_for(lambda: ask(tenant).status_code == 429, "the budget to be spent")
    asked = len(server.chat.submitted)
    refused = ask(tenant)
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert tenant.post("/v1/embeddings", json={"model": "vec", "input": "a"}).status_code == 429
    assert len(server.chat.submitted) == asked
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="tenant", timeout=20) as sdk,  # told not to try again
        pytest.raises(openai.RateLimitError, match="budget"),
    ):
        sdk.chat.completions.create(**CHAT)
    assert len(server.chat.submitted) == asked
    assert 'kvarn_budget_refusals_total{unit="tokens"}' in tenant.get("/metrics").text
    tenant.post(f"{BUDGETS}/{budget['id']}", json={"hard_limit": 10**6})
    wait_for(lambda: ask(tenant).status_code == 200, "the raised budget to hold")


def test_a_projects_budget_of_money_binds_that_project_only(server, tenant, wait_for):
    principal = server.authenticator.principals["tenant"]
    elsewhere = tenant.post("/v1/organization/projects", json={"name": "elsewhere"}).json()["id"]
    make(tenant, unit="cost", period="day", project_id=elsewhere, hard_limit=0.001)
    server.authenticator.principals["elsewhere"] = replace(
        principal, owner=replace(principal.owner, project_id=elsewhere)
    )
    with server.client("elsewhere") as client:
        wait_for(lambda: ask(client).status_code == 429, "the project's budget to be spent")
    assert ask(tenant).status_code == 200


def test_one_tenant_never_sees_or_touches_anothers_budget(server, tenant):
    mine = make(tenant, hard_limit=5)
    with server.add_tenant("other") as other:
        for method, body in (("GET", None), ("POST", {"hard_limit": 0}), ("DELETE", None)):
            assert other.request(method, f"{BUDGETS}/{mine['id']}", json=body).status_code == 404
        assert other.get(BUDGETS).json()["data"] == []
        assert other.get(BUDGETS, params={"after": mine["id"]}).status_code == 404
        theirs = server.authenticator.principals["tenant"].project_id
        answer = other.post(BUDGETS, json={"unit": "tokens", "period": "day", "project_id": theirs, "hard_limit": 0})
        assert answer.status_code == 404
        assert ask(other).status_code == 200
    assert tenant.get(f"{BUDGETS}/{mine['id']}").json() == mine


def test_only_administrators_have_to_do_with_budgets(server, tenant):
    for role in (Role.MEMBER, Role.SERVICE):
        server.authenticator.principals["someone"] = replace(server.authenticator.principals["tenant"], role=role)
        for method in ("GET", "POST"):
            answer = tenant.request(method, BUDGETS, headers={"authorization": "Bearer someone"})
            assert answer.status_code == 403


def test_a_new_soft_limit_may_be_passed_anew_in_the_same_period(tenant, wait_for):
    budget = f"{BUDGETS}/{make(tenant, soft_limit=1)['id']}"

    def alerted() -> str | None:
        period: str | None = tenant.get(budget).json()["alerted_period"]
        return period

    assert ask(tenant).status_code == 200
    wait_for(alerted, "the alert to be given")
    assert tenant.post(budget, json={"hard_limit": 10**6}).json()["alerted_period"] is not None
    assert tenant.post(budget, json={"soft_limit": 10**6}).json()["alerted_period"] is None
    tenant.post(budget, json={"soft_limit": 2})
    wait_for(alerted, "the alert of the new limit")


def test_what_makes_no_budget_names_the_field(tenant):
    good = {"unit": "tokens", "period": "day", "hard_limit": 5}
    for wrong, param in (
        ({"hard_limit": None}, "hard_limit"),
        ({"hard_limit": 1.5}, "hard_limit"),
        ({"hard_limit": -1}, "hard_limit"),
        ({"soft_limit": 1e18}, "soft_limit"),
        ({"unit": "cups"}, "unit"),
        ({"period": "week"}, "period"),
        ({"colour": "red"}, "colour"),
        ({"unit": "cost", "hard_limit": 1e-10}, "hard_limit"),
        ({"unit": "cost", "soft_limit": 4e-10}, "soft_limit"),
        ({"project_id": "\0"}, "project_id"),
    ):
        answer = tenant.post(BUDGETS, json=good | wrong)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param, (wrong, answer.text)
