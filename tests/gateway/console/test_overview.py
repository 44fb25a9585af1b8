"""Data of the overview: load, use and changes, as far as the viewer may see them."""

from __future__ import annotations

from typing import Any

import pytest

from asking import CHAT, chat
from gateway_fixtures import wait_for
from kvarn.observe.samples import SERIES
from kvarn.store.owner import Role

OVERVIEW = "/console/api/overview"


def sample(server) -> None:
    """Take a sample of the history now, as the server does every 10 s."""
    server.do(server.gateway.control.history.sample())


def test_an_open_server_tells_all(server, client) -> None:
    def overview() -> dict[str, Any]:
        return client.get(OVERVIEW, params={"range": "24h"}).json()

    def tile(name: str) -> float:
        return next(each["value"] or 0 for each in overview()["tiles"] if each["name"] == name)

    def failed() -> int:
        return round(tile("error_ratio") * tile("requests"))

    def are_counted() -> bool:
        """Requests count once their answers are out."""
        sample(server)
        return tile("requests") >= before + 2

    sample(server)
    before, failed_before = tile("requests"), failed()
    assert client.post(CHAT, json=chat()).status_code == 200
    assert client.post(CHAT, json=chat(max_tokens=-1)).status_code == 400
    wait_for(are_counted, "the requests to be counted")
    told = overview()
    assert told["state"]["since"] is None or told["state"]["since"] < told["at"]
    assert told["state"]["sentence"] and told["state"]["level"] in ("good", "warn", "bad"), "others' tests share it"
    tiles = {tile["name"]: tile for tile in told["tiles"]}
    assert tiles["ttft_p95_s"]["value"] > 0
    assert tiles["refused_ratio"]["value"] > 0 and failed() == failed_before, "what was refused has not failed"
    history = told["history"]
    assert {len(values) for values in history["series"].values()} == {len(history["at"])} == {360}
    assert any(history["series"]["requests_per_s"]) and history["marks"][0]["kind"] == "start"
    models = {row["name"]: row for row in told["models"]}
    assert models["tiny"]["ready"] and models["tiny"]["replicas"] == 1 == models["tiny"]["ready_replicas"]
    only = client.get(OVERVIEW, params={"model": "tiny"}).json()
    assert [row["name"] for row in only["models"]] == ["tiny"]
    assert next(tile for tile in only["tiles"] if tile["name"] == "ttft_p95_s")["target"] == 2.0


@pytest.mark.parametrize("query", [{"range": "48h"}, {"range": "1d"}, {"range": "0h"}])
def test_a_range_that_cannot_be_shown_is_refused(client, query) -> None:
    assert client.get(OVERVIEW, params=query).status_code == 400


def test_series_by_name(server, client) -> None:
    sample(server)
    told = client.get("/console/api/series", params={"names": "running,waiting", "range": "24h", "points": 24}).json()
    assert list(told["series"]) == ["running", "waiting"] and len(told["at"]) == 24 and told["step_s"] == 3600
    assert set(client.get("/console/api/series").json()["series"]) == set(SERIES)
    refused = client.get("/console/api/series", params={"names": "temperature"})
    assert refused.status_code == 400 and "ttft_p95_s" in refused.json()["error"]["message"]
    assert client.get(OVERVIEW, params={"model": "gone"}).status_code == 404


def test_each_viewer_sees_what_is_theirs(server, client) -> None:
    acme = server.add_tenant("acme-overview")
    other = server.add_tenant("globex-overview", role=Role.MEMBER)
    for each in (acme, other):
        assert each.post(CHAT, json=chat()).status_code == 200

    def users(viewer) -> set[str]:
        return {row["organization"] for row in viewer.get(OVERVIEW).json()["users"]}

    wait_for(lambda: users(acme) == {"acme-overview"}, "usage in the ledger")
    wait_for(lambda: users(other) == {"globex-overview"}, "usage in the ledger")
    assert len(users(client)) > 1, "a platform administrator sees all, the largest first"
    assert acme.post("/v1/organization/projects", json={"name": "pilot"}).status_code == 200
    changes = acme.get(OVERVIEW).json()["changes"]
    assert [change["kind"] for change in changes][-1:] == ["organization.created"]
    assert changes[0]["text"] == "project created: pilot", "names rather than ids"
    (project, *_) = acme.get("/v1/organization/projects").json()["data"]
    path = f"/v1/organization/projects/{project['id']}"
    key = acme.post(f"{path}/api_keys", json={"name": "ci-deploy"}).json()["id"]
    for limits in (f"{path}/rate_limits", f"{path}/api_keys/{key}/rate_limits"):
        assert acme.post(f"{limits}/rl-*", json={"max_requests_per_1_minute": 60}).status_code == 200
    budget = {"project_id": project["id"], "unit": "tokens", "period": "day", "hard_limit": 10**9}
    assert acme.post("/v1/organization/budgets", json=budget).status_code == 200
    texts = [change["text"] for change in acme.get(OVERVIEW).json()["changes"]]
    assert texts[:3] == [
        f"budget created: {project['name']}",
        "rate limit updated: ci-deploy, each model",
        f"rate limit updated: {project['name']}, each model",
    ]
    limits = (
        f"/v1/organization/tenants/{acme.get('/console/api/session').json()['organization']['id']}/rate_limits/rl-*"
    )
    assert client.post(limits, json={"max_requests_per_1_minute": 600}).status_code == 200
    assert client.get(OVERVIEW).json()["changes"][0]["text"] == "rate limit updated: acme-overview, each model"
    assert other.get(OVERVIEW).json()["changes"] == [], "a member of a project is no administrator"
