"""An organisation's administrator finds nothing of another's: not to read, not to change, not to guess."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from kvarn.store.engine import Store
from kvarn.store.models import Base, File, StoredCompletion
from kvarn.store.repositories import organization_deletion
from kvarn.store.repositories.organization_deletion import USAGE
from kvarn.store.repositories.stored_bytes import sum_stored_bytes
from kvarn.store.repositories.usage import billing
from profiles import thorough

PROJECT = "/v1/organization/projects/{project}"
SERVER = PROJECT + "/tool_servers/{server}"
TOOLS = {
    "openapi": "3.1.0",
    "servers": [{"url": "https://tools.example.org"}],
    "paths": {"/time": {"get": {"operationId": "time", "responses": {}}}},
}


@pytest.fixture
def pair(api):
    """Two tenants: what the first one owns, and clients of both administrators."""
    root = api.client(api.admin_key)
    tenants = [root.post("/v1/organization/tenants", json={"name": name}).json() for name in "ab"]
    first, second = (api.client(tenant["admin_api_key"]["value"]) for tenant in tenants)
    owned = {"tenant": tenants[0]["id"], "admin_key": tenants[0]["admin_api_key"]["id"]}
    owned["project"] = first.post("/v1/organization/projects", json={"name": "p"}).json()["id"]
    path = PROJECT.format(**owned)
    owned["user"] = first.post("/v1/organization/users", json={"email": "ada@example.org"}).json()["id"]
    assert first.post(f"{path}/users", json={"user_id": owned["user"], "role": "member"}).status_code == 200
    owned["account"] = first.post(f"{path}/service_accounts", json={"name": "s"}).json()["id"]
    owned["key"] = first.post(f"{path}/api_keys", json={"name": "k"}).json()["id"]
    for holder in (path, f"{path}/api_keys/{owned['key']}"):
        limit = first.post(f"{holder}/rate_limits/rl-tiny", json={"max_requests_per_1_minute": 1000})
        assert limit.status_code == 200, "there is something to take away"
    budget = {"unit": "tokens", "period": "day", "hard_limit": 1000}
    server = first.post(f"{path}/tool_servers", json={"name": "s", "kind": "http", "document": TOOLS})
    owned["server"] = server.json()["id"]
    owned["budget"] = first.post("/v1/organization/budgets", json=budget).json()["id"]
    return owned, first, second


REQUESTS = [
    ("GET", PROJECT, None),
    ("POST", PROJECT, {"name": "mine"}),
    ("POST", PROJECT + "/archive", None),
    ("DELETE", PROJECT + "/response_cache", None),
    ("GET", PROJECT + "/api_keys", None),
    ("POST", PROJECT + "/api_keys", {"name": "k"}),
    ("GET", PROJECT + "/api_keys/{key}", None),
    ("DELETE", PROJECT + "/api_keys/{key}", None),
    ("GET", PROJECT + "/api_keys/{key}/rate_limits", None),
    ("POST", PROJECT + "/api_keys/{key}/rate_limits/rl-tiny", {"max_requests_per_1_minute": 1}),
    ("DELETE", PROJECT + "/api_keys/{key}/rate_limits/rl-tiny", None),
    ("GET", PROJECT + "/rate_limits", None),
    ("POST", PROJECT + "/rate_limits/rl-tiny", {"max_requests_per_1_minute": 1}),
    ("DELETE", PROJECT + "/rate_limits/rl-tiny", None),
    ("GET", PROJECT + "/service_accounts", None),
    ("POST", PROJECT + "/service_accounts", {"name": "s"}),
    ("GET", PROJECT + "/service_accounts/{account}", None),
    ("POST", PROJECT + "/service_accounts/{account}", {"name": "s"}),
    ("DELETE", PROJECT + "/service_accounts/{account}", None),
    ("POST", PROJECT + "/service_accounts/{account}/api_keys", {"name": "k"}),
    ("GET", PROJECT + "/users", None),
    ("POST", PROJECT + "/users", {"user_id": "{user}", "role": "member"}),
    ("GET", PROJECT + "/users/{user}", None),
    ("POST", PROJECT + "/users/{user}", {"role": "owner"}),
    ("DELETE", PROJECT + "/users/{user}", None),
    ("GET", PROJECT + "/tool_servers", None),
    ("POST", PROJECT + "/tool_servers", {"name": "s", "kind": "http", "document": TOOLS}),
    ("GET", SERVER, None),
    ("POST", SERVER, {"description": "mine"}),
    ("DELETE", SERVER, None),
    ("GET", SERVER + "/tools", None),
    ("POST", SERVER + "/approve", {}),
    ("POST", SERVER + "/refuse", {}),
    ("GET", "/v1/organization/budgets/{budget}", None),
    ("POST", "/v1/organization/budgets/{budget}", {"hard_limit": 1}),
    ("DELETE", "/v1/organization/budgets/{budget}", None),
    ("GET", "/v1/organization/users/{user}", None),
    ("POST", "/v1/organization/users/{user}", {"role": "owner"}),
    ("DELETE", "/v1/organization/users/{user}", None),
    ("GET", "/v1/organization/admin_api_keys/{admin_key}", None),
    ("DELETE", "/v1/organization/admin_api_keys/{admin_key}", None),
]


CONSOLE = [
    ("GET", "/console/api/tools?project={project}", None),
    ("GET", "/console/api/tools/servers/s?project={project}", None),
    ("GET", "/console/api/tools/calls?project={project}", None),
]


def ask(client: httpx.Client, method: str, path: str, body: dict | None, owned: dict[str, str]) -> httpx.Response:
    filled = {key: value.format(**owned) if isinstance(value, str) else value for key, value in (body or {}).items()}
    return client.request(method, path.format(**owned), json=filled if body is not None else None)


def test_what_another_owns_is_as_unknown_as_what_nobody_has(pair) -> None:
    owned, _, second = pair
    nothing = {name: value[:-4] + "0000" for name, value in owned.items()}
    for method, path, body in REQUESTS + CONSOLE:
        answers = [ask(second, method, path, body, ids) for ids in (owned, nothing)]
        assert [answer.status_code for answer in answers] == [404, 404], (method, path)
        told = [answer.json()["error"] for answer in answers]
        for ids, error in zip((owned, nothing), told, strict=True):
            for value in ids.values():
                error["message"] = error["message"].replace(value, "…")
        assert told[0] == told[1], (method, path)


def test_every_operation_on_an_object_of_an_organisation_is_in_this_list(pair, api) -> None:
    document = api.client(None).get("/openapi.json").json()
    paths = {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations
        if path.startswith("/v1/organization/") and "{" in path and "/tenants" not in path
    }
    names = {
        "project": "project_id",
        "key": "key_id",
        "admin_key": "key_id",
        "account": "user_id",
        "user": "user_id",
        "budget": "budget_id",
        "server": "server_id",
    }
    covered = set()
    for method, path, _ in REQUESTS:
        for ours, theirs in names.items():
            path = path.replace(f"{{{ours}}}", f"{{{theirs}}}")
        covered.add((method, path.replace("rl-tiny", "{rate_limit_id}")))
    assert {(method, path.replace(":path", "")) for method, path in paths} == covered


def test_lists_show_ones_own_and_cursors_of_another_are_unknown(pair) -> None:
    owned, first, second = pair
    for path, anchor in (
        ("projects", owned["project"]),
        ("users", owned["user"]),
        ("admin_api_keys", owned["admin_key"]),
        ("budgets", owned["budget"]),
    ):
        assert anchor in first.get(f"/v1/organization/{path}").text
        assert anchor not in second.get(f"/v1/organization/{path}").text
        assert second.get(f"/v1/organization/{path}", params={"after": anchor}).status_code == 404
    entries = second.get("/v1/organization/audit_logs", params={"limit": 100}).text
    assert not any(value in entries for value in owned.values())


def test_tenants_are_the_platform_administrators_alone(pair, api) -> None:
    owned, first, _ = pair
    tenant = f"/v1/organization/tenants/{owned['tenant']}"
    for method, path, body in (
        ("GET", "/v1/organization/tenants", None),
        ("POST", "/v1/organization/tenants", {"name": "t"}),
        ("GET", tenant, None),
        ("POST", tenant, {"weight": 5}),
        ("DELETE", tenant, None),
        ("GET", f"{tenant}/audit_logs", None),
        ("GET", f"{tenant}/rate_limits", None),
        ("POST", f"{tenant}/rate_limits/rl-*", {"max_requests_per_1_minute": 1}),
        ("DELETE", f"{tenant}/rate_limits/rl-*", None),
    ):
        assert ask(first, method, path, body, owned).status_code == 403, (method, path)


def test_a_platform_administrator_sets_what_a_tenant_may(pair, api) -> None:
    owned, first, _ = pair
    root = api.client(api.admin_key)
    tenant = f"/v1/organization/tenants/{owned['tenant']}"
    changed = root.post(tenant, json={"weight": 3, "priority": 5, "retention_days": 30, "name": "A"}).json()
    assert [changed[name] for name in ("weight", "priority", "retention_days", "name")] == [3.0, 5, 30, "A"]
    assert root.post(tenant, json={"retention_days": None}).json()["retention_days"] is None
    before = root.get(tenant).json()
    assert before["weight"] == 3.0 and before["max_stored_bytes"] == 10 * 1024**3
    assert first.post("/v1/conversations", json={}).status_code == 200
    api.server.do(sum_stored_bytes(api.server.gateway.store))
    assert root.get(tenant).json()["stored_bytes"] == before["stored_bytes"] + 1024 + len("{}")
    assert root.post(f"{tenant}/rate_limits/rl-*", json={"max_requests_per_1_minute": 9}).status_code == 200
    assert root.get(f"{tenant}/rate_limits").json()["data"][0]["max_requests_per_1_minute"] == 9
    assert root.delete(f"{tenant}/rate_limits/rl-*").status_code == 200
    assert first.get("/v1/models").status_code == 200
    assert root.post(tenant, json={"archived": True}).json()["status"] == "archived"
    assert first.get("/v1/models").status_code == 401
    assert root.post(tenant, json={"archived": False}).json()["status"] == "active"
    assert first.get("/v1/models").status_code == 200
    assert root.post("/v1/organization/tenants/org-default", json={"archived": True}).status_code == 409
    assert root.delete("/v1/organization/tenants/org-default").status_code == 409
    listed = root.get("/v1/organization/tenants").json()["data"]
    assert {each["name"] for each in listed} == {"Default", "A", "b"}


@pytest.mark.parametrize("erase_usage", [thorough(False), True])
def test_a_deleted_tenant_leaves_nothing_but_the_news_of_it_and_what_it_owes(
    pair, api, erase_usage, monkeypatch, wait_for
) -> None:
    owned, first, second = pair
    root, gateway = api.client(api.admin_key), api.server.gateway
    listed = root.get("/v1/organization/tenants").json()["data"]
    other = next(each["id"] for each in listed if each["name"] == "b")
    tenant = f"/v1/organization/tenants/{owned['tenant']}"
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    assert first.post("/v1/chat/completions", json={**chat, "store": True}).status_code == 200
    api.server.do(keep_more_than_one_step(gateway.store, owned))
    wait_for(lambda: "usage_events" in api.server.do(rows_of(gateway.store, owned["tenant"])), "the ledger")
    api.server.do(bill_all(gateway.store))
    before = api.server.do(rows_of(gateway.store, owned["tenant"]))
    assert before["stored_completions"] == 61
    others = api.server.do(rows_of(gateway.store, other))

    under_way, go_on = pause_deletion(monkeypatch, before="files")
    with ThreadPoolExecutor(1) as pool:
        deletion = pool.submit(root.delete, tenant, params={"erase_usage": str(erase_usage).lower()})
        assert under_way.wait(20)
        part = api.server.do(rows_of(gateway.store, owned["tenant"]))
        unknown = first.get("/v1/models").status_code
        go_on.set()
        assert deletion.result().json()["deleted"]
    assert unknown == 401 and "stored_completions" not in part and {"files", "projects"} <= set(part)

    ledger = {model.__tablename__ for model in USAGE}
    left = api.server.do(rows_of(gateway.store, owned["tenant"]))
    assert set(left) == {"audit_log", "changes"} | (set() if erase_usage else ledger)
    assert all(left[name] == before[name] for name in set(left) - {"audit_log", "changes"})
    assert api.server.do(rows_of(gateway.store, other)) == others
    assert second.get("/v1/models").status_code == 200
    log = root.get("/v1/organization/audit_logs", params={"resource_ids[]": owned["tenant"]}).json()["data"]
    assert log[0]["type"] == "organization.deleted"
    kept = root.get(f"{tenant}/audit_logs", params={"limit": 100}).json()["data"]
    assert {"organization.created", "project.created", "api_key.created"} <= {entry["type"] for entry in kept}
    assert root.get(tenant).status_code == root.delete(tenant).status_code == 404


async def keep_more_than_one_step(store: Store, owned: dict[str, str]) -> None:
    """More of the tenant's than goes in one transaction, and a file."""
    marks = {"organization_id": owned["tenant"], "project_id": owned["project"], "created_at": int(store.now())}
    async with store.transaction() as session:
        for number in range(60):
            session.add(StoredCompletion(id=f"c{number}", model="m", extra={}, messages=[], body={}, **marks))
        session.add(File(id="file-1", filename="f", purpose="batch", size=0, **marks))


async def bill_all(store: Store) -> None:
    async for events in billing.unbilled(store):
        await billing.bill(store, events)


async def rows_of(store: Store, organization_id: str) -> dict[str, int]:
    """An organisation's rows of each table that has any."""
    counts = {}
    async with store.reading() as session:
        for table in Base.metadata.sorted_tables:
            if "organization_id" in table.columns:
                query = select(func.count()).select_from(table).where(table.c.organization_id == organization_id)
                counts[table.name] = int(await session.scalar(query) or 0)
    return {name: count for name, count in counts.items() if count}


def pause_deletion(monkeypatch: pytest.MonkeyPatch, before: str) -> tuple[threading.Event, threading.Event]:
    """Hold a deletion before it comes to a table: set when it is there, and to be set when it may go on."""
    delete_rows, there, go_on = organization_deletion.delete_rows, threading.Event(), threading.Event()

    async def paused(store: Store, model: type[Base], *given: Any, **named: Any) -> int:
        if model.__tablename__ == before:
            there.set()
            await asyncio.to_thread(go_on.wait, 20)
        return await delete_rows(store, model, *given, **named)

    monkeypatch.setattr(organization_deletion, "delete_rows", paused)
    return there, go_on
