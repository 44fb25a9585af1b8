"""The administration API, through OpenAI's own client, which checks every answer against its types."""

from __future__ import annotations

import openai
import pytest

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


@pytest.fixture
def admin(api):
    """The first administrator, with OpenAI's client."""
    with openai.OpenAI(
        base_url=f"{api.server.url}/v1",
        api_key="none",
        admin_api_key=api.admin_key,
        max_retries=0,
        timeout=20,
        _strict_response_validation=True,
    ) as client:
        yield client.admin.organization


def events(api, **wanted) -> list[str]:
    """Types of the audit log's entries, oldest first."""
    found = api.client(api.admin_key).get("/v1/organization/audit_logs", params={"limit": 100, **wanted}).json()
    return [entry["type"] for entry in found["data"]][::-1]


def test_a_project_lives_and_is_archived(admin, api) -> None:
    made = admin.projects.create(name="search")
    assert (made.name, made.status, made.archived_at) == ("search", "active", None)
    assert admin.projects.retrieve(made.id) == made
    assert admin.projects.update(made.id, name="find").name == "find"
    assert {project.name for project in admin.projects.list()} == {"Default project", "find"}
    assert admin.projects.archive(made.id).status == "archived"
    assert [project.name for project in admin.projects.list()] == ["Default project"]
    assert {project.name for project in admin.projects.list(include_archived=True)} == {"Default project", "find"}
    with pytest.raises(openai.ConflictError, match="archived"):
        admin.projects.update(made.id, name="again")
    with pytest.raises(openai.ConflictError, match="default project"):
        admin.projects.archive("proj_default")
    assert events(api, **{"resource_ids[]": made.id}) == ["project.created", "project.updated", "project.archived"]


def test_a_projects_key_works_until_it_is_deleted_or_its_project_archived(admin, api) -> None:
    root = api.client(api.admin_key)
    project = admin.projects.create(name="p").id
    path = f"/v1/organization/projects/{project}/api_keys"
    made = [root.post(path, json={"name": name, "scopes": ["models:tiny"]}).json() for name in ("one", "two")]
    assert all(key["value"].startswith("kv-") for key in made)
    listed = list(admin.projects.api_keys.list(project))
    assert [key.name for key in listed] == ["one", "two"]
    shown = admin.projects.api_keys.retrieve(made[0]["id"], project_id=project)
    assert shown.redacted_value == made[0]["redacted_value"] and made[0]["value"] not in shown.to_json()
    assert list(admin.projects.api_keys.list(project, owner_project_access="inactive")) == []
    users = [api.client(key["value"]) for key in made]
    assert [user.post("/v1/chat/completions", json=CHAT).status_code for user in users] == [200, 200]
    assert admin.projects.api_keys.delete(made[0]["id"], project_id=project).deleted
    assert [user.post("/v1/chat/completions", json=CHAT).status_code for user in users] == [401, 200]
    with pytest.raises(openai.NotFoundError):
        admin.projects.api_keys.delete(made[0]["id"], project_id=project)
    admin.projects.archive(project)
    assert users[1].post("/v1/chat/completions", json=CHAT).status_code == 401


def test_a_project_and_its_keys_may_have_some_tools_only(admin, api) -> None:
    root = api.client(api.admin_key)
    project = admin.projects.create(name="tools").id
    where = f"/v1/organization/projects/{project}"
    scopes = {"name": "k", "scopes": ["tools:clock", "tools:mcp:files"]}
    user = api.client(root.post(f"{where}/api_keys", json=scopes).json()["value"])

    def asks(kind: str) -> int:
        body = {"model": "tiny", "input": "Hej", "tools": [{"type": kind}]}
        return int(user.post("/v1/responses", json=body).status_code)

    assert [asks("clock"), asks("calculator")] == [200, 403]
    assert root.post(where, json={"tools": ["calculator"]}).json()["tools"] == ["calculator"]
    assert [asks("clock"), asks("calculator")] == [403, 403]
    assert root.post(where, json={"tools": ["*"]}).json()["tools"] is None
    assert asks("clock") == 200
    assert root.post(where, json={"tools": ["No!"]}).status_code == 400


def test_a_key_of_a_project_administers_nothing(admin, api) -> None:
    made = api.client(api.admin_key).post(
        "/v1/organization/projects/proj_default/api_keys", json={"name": "k", "role": "member"}
    )
    member = api.client(made.json()["value"])
    for path in ("projects", "users", "admin_api_keys", "audit_logs", "tenants"):
        refused = member.get(f"/v1/organization/{path}")
        assert refused.status_code == 403, path
        assert refused.json()["error"]["code"] == "insufficient_permissions"
    assert next(iter(admin.admin_api_keys.list())).name == "Bootstrap admin key"


def test_administrators_keys_are_made_and_deleted_but_not_the_last(admin, api) -> None:
    first = next(iter(admin.admin_api_keys.list()))
    with pytest.raises(openai.ConflictError, match="last administrator"):
        admin.admin_api_keys.delete(first.id)
    second = admin.admin_api_keys.create(name="second", expires_in_seconds=3600)
    assert second.expires_at == second.created_at + 3600
    assert admin.admin_api_keys.retrieve(second.id).name == "second"
    assert [key.name for key in admin.admin_api_keys.list(order="desc")] == ["second", "Bootstrap admin key"]
    assert api.client(second.value).get("/v1/organization/projects").status_code == 200
    assert admin.admin_api_keys.delete(second.id).deleted
    assert api.client(second.value).get("/v1/organization/projects").status_code == 401


def test_people_join_projects_and_lose_their_keys_when_they_leave(admin, api) -> None:
    root = api.client(api.admin_key)
    made = root.post("/v1/organization/users", json={"email": "Ada@example.org", "role": "reader"}).json()
    assert root.post("/v1/organization/users", json={"email": "ada@example.org"}).status_code == 409
    assert [user.id for user in admin.users.list(emails=["ADA@example.org", "bob@example.org"])] == [made["id"]]
    assert admin.users.retrieve(made["id"]).email == "ada@example.org"
    project = admin.projects.create(name="p").id
    keys_path = f"/v1/organization/projects/{project}/api_keys"
    ask = {"name": "hers", "user_id": made["id"]}
    assert root.post(keys_path, json=ask).status_code == 404, "she is not in the project yet"
    joined = admin.projects.users.create(project, email="ada@example.org", role="member")
    assert (joined.id, joined.role) == (made["id"], "member")
    assert admin.projects.users.update(made["id"], project_id=project, role="owner").role == "owner"
    assert [user.id for user in admin.projects.users.list(project)] == [made["id"]]
    with pytest.raises(openai.ConflictError):
        admin.projects.users.create(project, user_id=made["id"], role="member")
    hers = api.client(root.post(keys_path, json=ask).json()["value"])
    admin.projects.users.create("proj_default", user_id=made["id"], role="member")
    elsewhere = api.client(root.post("/v1/organization/projects/proj_default/api_keys", json=ask).json()["value"])
    assert next(iter(admin.projects.api_keys.list(project))).owner.user.email == "ada@example.org"
    assert hers.get("/v1/models").status_code == 200
    assert admin.projects.users.delete(made["id"], project_id=project).deleted
    assert hers.get("/v1/models").status_code == 401
    assert elsewhere.get("/v1/models").status_code == 200, "she is still in the other project"
    assert admin.users.update(made["id"], role="owner").role == "owner"
    assert admin.users.delete(made["id"]).deleted
    assert elsewhere.get("/v1/models").status_code == 401
    with pytest.raises(openai.NotFoundError):
        admin.users.retrieve(made["id"])


def test_an_administrator_who_is_none_any_more_administers_nothing(admin, api) -> None:
    root = api.client(api.admin_key)
    made = root.post("/v1/organization/users", json={"email": "ada@example.org", "role": "owner"}).json()
    root.post("/v1/organization/projects/proj_default/users", json={"user_id": made["id"], "role": "owner"})

    async def key_of_hers() -> str:
        from kvarn.store.owner import Role
        from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
        from kvarn.store.repositories.tenants.keys import KeyRequest, add_key

        asked = KeyRequest(name="hers", role=Role.ADMIN, user_id=made["id"])
        async with audited_change(api.server.gateway.store, Actor("test")) as change:
            return (await add_key(change, "org-default", "proj_default", asked))[1]

    hers = api.client(api.server.do(key_of_hers()))
    mine = hers.post("/v1/organization/admin_api_keys", json={"name": "more"}).json()
    assert mine["owner"]["id"] == made["id"], "the keys she makes are hers"
    admin.users.update(made["id"], role="reader")
    for value in (hers, api.client(mine["value"])):
        assert value.get("/v1/organization/users").status_code == 403
        assert value.get("/v1/models").status_code == 200


def test_service_accounts_have_keys_and_take_them_along(admin, api) -> None:
    project = admin.projects.create(name="p").id
    made = admin.projects.service_accounts.create(project, name="crawler")
    assert api.client(made.api_key.value).get("/v1/models").status_code == 200
    bare = admin.projects.service_accounts.create(project, name="bare", create_service_account_only=True)
    assert bare.api_key is None
    more = api.client(api.admin_key).post(
        f"/v1/organization/projects/{project}/service_accounts/{bare.id}/api_keys", json={"scopes": ["models:vec"]}
    )
    assert more.json()["object"] == "organization.project.service_account.api_key"
    assert api.client(more.json()["value"]).post("/v1/chat/completions", json=CHAT).status_code == 403
    renamed = admin.projects.service_accounts.update(bare.id, project_id=project, name="worker", role="owner")
    assert (renamed.name, renamed.role) == ("worker", "owner")
    assert [each.name for each in admin.projects.service_accounts.list(project)] == ["crawler", "worker"]
    assert list(admin.users.list()) == [], "a service account is nobody of the organisation"
    assert admin.projects.service_accounts.delete(made.id, project_id=project).deleted
    assert api.client(made.api_key.value).get("/v1/models").status_code == 401


def test_rate_limits_are_listed_for_every_model_set_and_taken_away(admin, api) -> None:
    project = admin.projects.create(name="p").id
    listed = {limit.id: limit for limit in admin.projects.rate_limits.list_rate_limits(project)}
    assert list(listed) == ["rl-*", "rl-tiny", "rl-vec"]
    assert listed["rl-tiny"].max_requests_per_1_minute == 2**53 - 1
    changed = admin.projects.rate_limits.update_rate_limit(
        "rl-tiny", project_id=project, max_requests_per_1_minute=60, max_tokens_per_1_minute=1000
    )
    assert (changed.max_requests_per_1_minute, changed.max_tokens_per_1_minute) == (60, 1000)
    root = api.client(api.admin_key)
    path = f"/v1/organization/projects/{project}/rate_limits"
    partly = root.post(f"{path}/rl-tiny", json={"max_tokens_per_1_minute": None, "max_concurrent_requests": 3}).json()
    assert (partly["max_requests_per_1_minute"], partly["max_tokens_per_1_minute"]) == (60, 2**53 - 1)
    assert partly["max_concurrent_requests"] == 3
    made = root.post(f"/v1/organization/projects/{project}/api_keys", json={"name": "k"}).json()
    key_path = f"/v1/organization/projects/{project}/api_keys/{made['id']}/rate_limits"
    assert root.post(f"{key_path}/rl-*", json={"max_requests_per_1_minute": 5}).status_code == 200

    async def rules():
        return (await api.server.gateway.control.key_cache.bearer_of(made["value"])).limits

    found = {(rule.holder, rule.model, rule.requests_per_minute) for rule in api.server.do(rules())}
    assert found == {(project, "tiny", 60), (made["id"], "*", 5)}
    assert root.delete(f"{path}/rl-tiny").status_code == 200
    for wrong in ("rl-none", "tiny"):
        assert root.post(f"{path}/{wrong}", json={"max_requests_per_1_minute": 1}).status_code == 404
    refused = root.post(f"{path}/rl-tiny", json={"max_images_per_1_minute": 1})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "max_images_per_1_minute"
    kinds = events(api, **{"event_types[]": ["rate_limit.updated", "rate_limit.deleted"]})
    assert kinds == ["rate_limit.updated"] * 3 + ["rate_limit.deleted"]


def test_lists_come_in_pages(admin) -> None:
    made = [admin.projects.create(name=f"p{number}").id for number in range(5)]
    first = admin.projects.list(limit=2)
    assert len(first.data) == 2 and first.has_more and first.last_id == first.data[-1].id
    assert {project.id for project in admin.projects.list(limit=2)} == {"proj_default", *made}
    with pytest.raises(openai.NotFoundError):
        admin.projects.list(after="proj_none")
    with pytest.raises(openai.BadRequestError):
        admin.projects.list(limit=0)


def test_the_audit_log_says_who_did_what_where_and_no_secret(admin, api) -> None:
    project = admin.projects.create(name="p").id
    account = admin.projects.service_accounts.create(project, name="crawler")
    admin.projects.api_keys.delete(account.api_key.id, project_id=project)
    me = next(iter(admin.admin_api_keys.list())).id
    entries = list(admin.audit_logs.list(project_ids=[project]))
    assert {entry.type for entry in entries} == {
        "project.created",
        "service_account.created",
        "api_key.created",
        "api_key.deleted",
    }
    assert all(entry.actor.api_key.id == me and entry.project.name == "p" for entry in entries)
    assert account.api_key.value not in str(entries)
    assert list(admin.audit_logs.list(actor_ids=["key_none"])) == []
    assert len(list(admin.audit_logs.list(resource_ids=[account.id]))) == 1
    assert len(list(admin.audit_logs.list(project_ids=[project], event_types=["api_key.created"]))) == 1
    at = entries[0].effective_at
    assert list(admin.audit_logs.list(project_ids=[project], effective_at={"gt": at})) == []
    assert len(list(admin.audit_logs.list(project_ids=[project], effective_at={"gte": at - 100, "lte": at}))) == 4
    page = admin.audit_logs.list(project_ids=[project], limit=3)
    assert page.has_more and len(list(page)) == 4
    back = admin.audit_logs.list(project_ids=[project], before=entries[2].id)
    assert [entry.id for entry in back.data] == [entry.id for entry in entries[:2]]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("projects", {"name": ""}, "name"),
        ("projects", {"name": "a\u0000b"}, "name"),
        ("projects", {"name": "p", "residency": "US_STORAGE_PROCESSING"}, "residency"),
        ("projects", {"name": "p", "colour": "red"}, "colour"),
        ("projects/proj_default/api_keys", {"name": "k", "role": "admin"}, "role"),
        ("projects/proj_default/api_keys", {"name": "k", "scopes": ["everything"]}, "scopes"),
        ("projects/proj_default/users", {"role": "member"}, "user_id"),
        ("users", {"email": "nobody"}, "email"),
        ("admin_api_keys", {"name": "k", "expires_in_seconds": 0}, "expires_in_seconds"),
        ("tenants", {"name": "t", "weight": 0}, "weight"),
    ],
)
def test_what_cannot_be_set_is_refused_by_name(shared_server, path, body, param) -> None:
    with shared_server.client() as client:
        answer = client.post(f"/v1/organization/{path}", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(param)
