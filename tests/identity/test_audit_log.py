"""The audit log knows who acted, for as long as it is kept, and tells it to their own organisation alone."""

from __future__ import annotations

from typing import Any

import httpx

from kvarn.cli.administration.database import actor
from kvarn.store.owner import Role
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key
from kvarn.store.repositories.tenants.organizations import change_organization

LOG = "/v1/organization/audit_logs"


def log(client: httpx.Client, **wanted: str) -> list[dict[str, Any]]:
    return client.get(LOG, params={"limit": 100, **wanted}).json()["data"]


def administrator(api, root: httpx.Client, organization_id: str, email: str) -> tuple[str, str, httpx.Client]:
    """A person who administers an organisation: user id, key id, and their client."""
    project = root.get("/v1/organization/projects").json()["data"][0]["id"]
    user = root.post("/v1/organization/users", json={"email": email, "role": "owner"}).json()["id"]

    async def make():
        asked = KeyRequest(name="theirs", role=Role.ADMIN, user_id=user)
        async with audited_change(api.server.gateway.store, Actor("test")) as change:
            return await add_key(change, organization_id, project, asked)

    key, value = api.server.do(make())
    return user, key.id, api.client(value)


def tenant(api) -> tuple[str, httpx.Client]:
    made = api.client(api.admin_key).post("/v1/organization/tenants", json={"name": "a"}).json()
    return made["id"], api.client(made["admin_api_key"]["value"])


def test_what_a_user_did_is_known_after_they_are_deleted(api) -> None:
    organization_id, first = tenant(api)
    user, key, theirs = administrator(api, first, organization_id, "Mallory@example.org")
    made = theirs.post("/v1/organization/projects", json={"name": "bad"}).json()["id"]
    before = log(first, **{"resource_ids[]": made})
    assert before[0]["actor"]["api_key"] == {
        "id": key,
        "type": "user",
        "user": {"id": user, "email": "mallory@example.org"},
    }
    assert first.delete(f"/v1/organization/users/{user}").status_code == 200
    assert theirs.get(LOG).status_code == 401
    for name, value in (("resource_ids", made), ("actor_emails", "MALLORY@example.org"), ("actor_ids", user)):
        assert log(first, **{f"{name}[]": value}) == before, name
    assert log(first, **{"actor_ids[]": key}) == before


def test_a_tenant_cannot_tell_one_platform_administrator_from_another(api) -> None:
    organization_id, first = tenant(api)
    root = api.client(api.admin_key)
    user, key, platform = administrator(api, root, "org-default", "root@platform.example")
    assert platform.post(f"/v1/organization/tenants/{organization_id}", json={"weight": 2}).status_code == 200
    limit = f"/v1/organization/tenants/{organization_id}/rate_limits/rl-*"
    assert platform.post(limit, json={"max_requests_per_1_minute": 9}).status_code == 200
    entries = log(first, **{"event_types[]": "organization.updated"}) + log(
        first, **{"event_types[]": "rate_limit.updated"}
    )
    nameless = {"type": "session", "session": {}, "name": "platform administrator"}
    assert [entry["actor"] for entry in entries] == [nameless, nameless]
    shown = first.get(LOG, params={"limit": 100}).text
    assert not any(text in shown for text in (user, key, "root@platform.example"))
    for name, value in (("actor_emails", "root@platform.example"), ("actor_ids", user), ("actor_ids", key)):
        assert log(first, **{f"{name}[]": value}) == [], name
        assert [entry["type"] for entry in log(root, **{f"{name}[]": value})] == [
            "rate_limit.updated",
            "organization.updated",
        ]


def test_the_command_line_is_the_platforms_too(api) -> None:
    organization_id, first = tenant(api)

    async def change() -> None:
        async with audited_change(api.server.gateway.store, actor()) as change:
            await change_organization(change, organization_id, {"weight": 2.0})

    api.server.do(change())
    wanted = {"event_types[]": "organization.updated"}
    assert log(first, **wanted)[0]["actor"]["name"] == "platform administrator"
    assert log(api.client(api.admin_key), **wanted)[0]["actor"]["name"].startswith("command line (")
