"""Usage and costs by time and group, in OpenAI's shapes, seen by those who may."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from kvarn.store.owner import Role
from kvarn.store.repositories.usage import events as usage_events
from sample_usage import make_event

DAY = 1_790_000_000 // 86_400 * 86_400
HOUR = 3_600
COMPLETIONS = "/v1/organization/usage/completions"


@pytest.fixture
def server(kept: Any) -> Any:
    return kept


@pytest.fixture
def tenant(server: Any) -> Iterator[httpx.Client]:
    """An administrator of an organisation with some usage; `another` organisation has some too."""
    client = server.add_tenant("tenant")
    server.add_tenant("another").close()
    events = []
    for name, first in (("tenant", 0), ("another", 100)):
        owner = server.authenticator.principals[name].owner
        made = {"organization_id": owner.organization_id, "project_id": owner.project_id}
        events += [
            make_event(first + 1, finished_at=DAY + 10, key_id="key_1", **made),
            make_event(first + 2, finished_at=DAY + HOUR, service_tier="batch", user_id="user-1", **made),
            make_event(first + 3, finished_at=DAY + HOUR + 1, model="other", cost=2_500_000_000, **made),
            make_event(first + 4, finished_at=DAY + HOUR, endpoint="/v1/embeddings", output_tokens=0, **made),
            make_event(first + 5, finished_at=DAY + HOUR, endpoint="/v1/moderations", output_tokens=0, **made),
            make_event(first + 6, finished_at=DAY + 3 * 86_400, **{**made, "project_id": "proj_2"}),
        ]
    server.do(usage_events.record(server.gateway.store, events))
    with client:
        yield client


def buckets(client: httpx.Client, path: str = COMPLETIONS, **query: Any) -> list[dict[str, Any]]:
    answer = client.get(path, params={"start_time": DAY, **query})
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


def test_the_official_client_reads_usage_and_costs(server, tenant):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="tenant", admin_api_key="tenant", max_retries=0) as sdk:
        page = sdk.admin.organization.usage.completions(
            start_time=DAY, end_time=DAY + 86_400, bucket_width="1h", group_by=["model", "batch"], limit=2
        )
        assert page.has_more and len(page.data) == 2
        found = [(result.model, result.batch, result.output_tokens) for result in page.data[1].results]
        assert found == [("other", False, 5), ("tiny", True, 5)]
        costs = sdk.admin.organization.usage.costs(start_time=DAY, limit=1, group_by=["line_item"])
        assert {result.line_item: result.amount.value for result in costs.data[0].results} == {
            "other": 2.5,
            "tiny": 4e-06,
        }
        vectors = sdk.admin.organization.usage.embeddings(start_time=DAY, limit=1)
        assert (vectors.data[0].results[0].input_tokens, vectors.data[0].results[0].num_model_requests) == (10, 1)


def test_buckets_are_aligned_and_cut_to_what_was_asked_for(tenant):
    found = buckets(tenant, start_time=DAY + 5, end_time=DAY + HOUR + 1, bucket_width="1h")
    assert [(each["start_time"], each["end_time"]) for each in found] == [
        (DAY + 5, DAY + HOUR),
        (DAY + HOUR, DAY + HOUR + 1),
    ]
    assert [each["results"][0]["num_model_requests"] for each in found] == [1, 1]
    assert found[0]["results"][0] == {
        "object": "organization.usage.completions.result",
        "input_tokens": 10,
        "input_cached_tokens": 4,
        "input_uncached_tokens": 6,
        "output_tokens": 5,
        "input_audio_tokens": 0,
        "output_audio_tokens": 0,
        "num_model_requests": 1,
        "project_id": None,
        "user_id": None,
        "api_key_id": None,
        "model": None,
        "batch": None,
        "service_tier": None,
    }


def test_pages_follow_each_other_to_the_end(tenant):
    query: dict[str, Any] = {"start_time": DAY + 5, "end_time": DAY + 4 * 86_400, "limit": 2}
    seen = []
    while True:
        page = tenant.get(COMPLETIONS, params=query).json()
        seen += page["data"]
        if not page["has_more"]:
            break
        query["page"] = page["next_page"]
    assert page["next_page"] is None
    assert [len(each["results"]) for each in seen] == [1, 0, 0, 1]
    assert [each["end_time"] for each in seen[:-1]] == [each["start_time"] for each in seen[1:]]


def test_filters_narrow_what_is_counted(tenant):
    for query, requests in (
        ({}, 3),
        ({"batch": "true"}, 1),
        ({"batch": "false"}, 2),
        ({"models[]": ["other", "none"]}, 1),
        ({"api_key_ids": "key_1"}, 1),
        ({"user_ids[]": "user-1"}, 1),
        ({"project_ids": "proj_elsewhere"}, 0),
    ):
        (day,) = buckets(tenant, limit=1, **query)
        assert sum(result["num_model_requests"] for result in day["results"]) == requests, query


def test_a_member_sees_the_project_and_a_program_nothing(server, tenant):
    admin = server.authenticator.principals["tenant"]
    server.authenticator.principals["member"] = replace(admin, role=Role.MEMBER)
    server.authenticator.principals["program"] = replace(admin, role=Role.SERVICE)
    asked = {"start_time": DAY, "limit": 5, "group_by": "project_id"}

    def projects(token: str, **more: Any) -> set[str]:
        answer = tenant.get(COMPLETIONS, params=asked | more, headers={"authorization": f"Bearer {token}"}).json()
        return {result["project_id"] for bucket in answer["data"] for result in bucket["results"]}

    assert projects("tenant") == {admin.project_id, "proj_2"}
    assert projects("member") == {admin.project_id}
    assert projects("member", project_ids="proj_2") == set()
    refused = tenant.get(COMPLETIONS, params=asked, headers={"authorization": "Bearer program"})
    assert refused.status_code == 403 and refused.json()["error"]["code"] == "insufficient_permissions"


def test_what_cannot_be_answered_names_the_parameter(tenant):
    embeddings, costs = "/v1/organization/usage/embeddings", "/v1/organization/costs"
    wrong: list[tuple[str, dict[str, Any], str]] = [
        (COMPLETIONS, {"start_time": None}, "start_time"),
        (COMPLETIONS, {"start_time": ""}, "start_time"),
        (COMPLETIONS, {"start_time": "-1"}, "start_time"),
        (COMPLETIONS, {"start_time": "9" * 30}, "start_time"),
        (COMPLETIONS, {"end_time": DAY}, "end_time"),
        (COMPLETIONS, {"bucket_width": "1w"}, "bucket_width"),
        (COMPLETIONS, {"group_by": "colour"}, "group_by"),
        (COMPLETIONS, {"limit": 32}, "limit"),
        (COMPLETIONS, {"limit": 0}, "limit"),
        (COMPLETIONS, {"page": "page_17"}, "page"),
        (COMPLETIONS, {"page": "¹²"}, "page"),
        (COMPLETIONS, {"colour": "red"}, "colour"),
        (embeddings, {"batch": "true"}, "batch"),
        (costs, {"bucket_width": "1h"}, "bucket_width"),
        (costs, {"limit": 181}, "limit"),
    ]
    for path, query, param in wrong:
        answer = tenant.get(path, params={"start_time": DAY} | query)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param, (path, query, answer.text)
