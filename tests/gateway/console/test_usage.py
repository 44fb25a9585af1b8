"""Usage of what the viewer may see: by time and by whom."""

from __future__ import annotations

import csv
from dataclasses import replace
from datetime import date
from io import StringIO

import pytest

from asking import CHAT, chat
from gateway_fixtures import wait_for
from kvarn.gateway.console.api import usage as routes
from kvarn.store.owner import Role

USAGE = "/console/api/usage"


def test_usage_is_told_to_those_whose_it_is(server, client) -> None:
    acme = server.add_tenant("acme-usage")
    member = server.add_tenant("globex-usage", role=Role.MEMBER)
    for each in (acme, acme, member):
        assert each.post(CHAT, json=chat()).status_code == 200

    def details(viewer, **query) -> dict[str, int]:
        told = viewer.get(USAGE, params={"group": "project"} | query).json()
        return {row["detail"]: row["requests"] for row in told["rows"]}

    wait_for(
        lambda: details(client).get("acme-usage") == 2 and "globex-usage" in details(client), "usage in the ledger"
    )
    assert details(acme) == {"acme-usage": 2}
    assert details(member) == {"globex-usage": 1}
    theirs = acme.get(USAGE).json()["rows"][0]["id"]
    assert details(client, project=theirs) == {"acme-usage": 2}, "a platform administrator sees one project"
    assert client.get(USAGE, params={"project": theirs}).json()["names"][theirs]
    assert details(member, project=theirs) == {}, "another tenant's project is not there"
    organizations = client.get(USAGE, params={"group": "organization"}).json()["rows"]
    of_acme = next(row["id"] for row in organizations if row["name"] == "acme-usage")
    assert details(client, organization=of_acme) == {"acme-usage": 2}
    assert details(member, organization=of_acme) == {}


def test_a_programs_key_sees_no_usage_here_as_on_the_api(server) -> None:
    service = server.add_tenant("initech-usage", role=Role.SERVICE)
    assert service.post(CHAT, json=chat()).status_code == 200
    here = service.get(USAGE)
    api = service.get("/v1/organization/usage/completions", params={"start_time": 1})
    assert here.status_code == api.status_code == 403
    assert here.json()["error"]["message"] == api.json()["error"]["message"]
    assert service.get("/console/api/overview").json()["users"] == []


def settled(server, name: str):
    """An organisation of its own with two requests, both in the ledger: what is read twice is the same."""
    tenant = server.add_tenant(name, role=Role.ADMIN)
    for _ in range(2):
        assert tenant.post(CHAT, json=chat()).status_code == 200
    wait_for(lambda: sum(row["requests"] for row in tenant.get(USAGE).json()["rows"]) == 2, "usage in the ledger")
    return tenant


@pytest.mark.parametrize("group", ["organization", "project", "model", "key", "user"])
def test_rows_buckets_and_lines_are_of_the_same_requests(server, group) -> None:
    told = settled(server, f"sums-by-{group}").get(USAGE, params={"group": group, "range": "1h"}).json()
    tokens = sum(row["input_tokens"] + row["output_tokens"] for row in told["rows"])
    assert tokens == sum(each["input_tokens"] + each["output_tokens"] for each in told["buckets"]) > 0
    assert tokens == sum(sum(line["tokens"]) for line in told["lines"])
    assert {len(line["tokens"]) for line in told["lines"]} == {len(told["buckets"])}
    assert told["width_s"] == 300 and told["buckets"][-1]["at"] < told["end"]


@pytest.mark.parametrize("group", ["organization", "model", "user"])
def test_the_export_by_day_and_group_sums_to_what_is_shown(server, group, monkeypatch) -> None:
    client = settled(server, f"export-by-{group}")
    query = {"group": group, "range": "7d"}
    answer = client.get(f"{USAGE}.csv", params=query)
    assert answer.headers["content-type"].startswith("text/csv") and group in answer.headers["content-disposition"]
    exported: dict[str, int] = {}
    for row in csv.DictReader(StringIO(answer.text)):
        assert date.fromisoformat(row["day"])
        exported[row["id"]] = exported.get(row["id"], 0) + int(row["requests"])
    assert sum(exported.values()) == 2
    assert exported == {row["id"] or "": row["requests"] for row in client.get(USAGE, params=query).json()["rows"]}
    monkeypatch.setattr(routes, "MAX_EXPORTED", 0)
    assert client.get(f"{USAGE}.csv", params=query).status_code == 400


def test_the_export_is_of_what_the_viewer_may_see(server) -> None:
    member = server.add_tenant("globex-usage-csv", role=Role.MEMBER)
    assert member.post(CHAT, json=chat()).status_code == 200
    wait_for(lambda: member.get(USAGE).json()["rows"], "usage in the ledger")
    rows = list(csv.DictReader(StringIO(member.get(f"{USAGE}.csv").text)))
    assert [(row["detail"], row["requests"]) for row in rows] == [("globex-usage-csv", "1")]


def test_a_key_is_named_by_its_label(server) -> None:
    acme = server.add_tenant("acme-usage-keys", role=Role.ADMIN)
    (project,) = acme.get("/v1/organization/projects").json()["data"]
    path = f"/v1/organization/projects/{project['id']}/api_keys"
    key = acme.post(path, json={"name": "ci-deploy"}).json()
    principals = server.authenticator.principals
    principals["acme-usage-keys"] = replace(principals["acme-usage-keys"], key_id=key["id"])
    assert acme.post(CHAT, json=chat()).status_code == 200
    wait_for(lambda: acme.get(USAGE).json()["rows"], "usage in the ledger")
    told = acme.get(USAGE, params={"group": "key", "key": key["id"]}).json()
    (row,) = told["rows"]
    assert (row["id"], row["name"], row["detail"]) == (key["id"], "ci-deploy", key["redacted_value"])
    assert told["names"] == {key["id"]: "ci-deploy"}


@pytest.mark.parametrize("query", [{"range": "1y"}, {"group": "colour"}])
def test_a_wrong_question_is_refused(client, query) -> None:
    assert client.get(USAGE, params=query).status_code == 400
