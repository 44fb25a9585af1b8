"""Who gets in, through a real gateway."""

from __future__ import annotations

import time

import httpx
import openai
import pytest

from gateway_fixtures import wait_for
from kvarn.store.keys import new_key
from kvarn.store.owner import Scopes
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key, get_key, revoke_key
from new_tenants import create_organization

ACTOR = Actor("test")
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


def make_key(api, **asked):
    """A tenant with one key; organisation, key id, value."""

    async def make():
        store = api.server.gateway.store
        tenant = await create_organization(store, "tenant")
        async with audited_change(store, ACTOR) as change:
            key, value = await add_key(change, tenant.organization_id, tenant.project_id, KeyRequest(name="k", **asked))
        return tenant, key.id, value

    return api.server.do(make())


def test_without_a_valid_key_nobody_gets_in_and_all_hear_the_same(api) -> None:
    _, _, value = make_key(api)
    _, _, expired = make_key(api, lifetime_s=-1)
    wrong = [new_key().value, expired, value[:-1] + "!", "sk-something", value[:15] + new_key().value[15:]]
    answers = [api.client(key).post("/v1/chat/completions", json=ASK) for key in wrong]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.text for answer in answers}) == 1
    error = answers[0].json()["error"]
    assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
    assert answers[0].headers["www-authenticate"].startswith("Bearer")
    assert "x-request-id" in answers[0].headers
    missing = api.client(None).get("/v1/models")
    assert missing.status_code == 401 and "did not provide" in missing.json()["error"]["message"]


def test_paths_of_probes_need_no_key(api) -> None:
    with api.client(None) as nobody:
        assert {nobody.get(path).status_code for path in ("/health", "/ready", "/metrics", "/docs/api", "/")} == {200}


def test_the_official_clients_work_with_a_key(api) -> None:
    _, _, value = make_key(api)
    with openai.OpenAI(base_url=f"{api.server.url}/v1", api_key=value, max_retries=0) as client:
        assert client.chat.completions.create(**ASK).choices[0].message.content
    stranger = openai.OpenAI(base_url=f"{api.server.url}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
        stranger.models.list()


def test_a_key_is_read_from_anthropics_header_too(api) -> None:
    _, _, value = make_key(api)
    with httpx.Client(base_url=api.server.url) as client:
        assert client.get("/v1/models", headers={"x-api-key": value}).status_code == 200
        assert client.get("/v1/models", headers={"x-api-key": "wrong"}).status_code == 401
        both = {"x-api-key": value, "authorization": "Bearer none"}
        assert client.get("/v1/models", headers=both).status_code == 200
        assert client.get("/v1/models", headers={"authorization": f"bearer {value}"}).status_code == 200
        assert client.get("/v1/models", headers={"authorization": f"Basic {value}"}).status_code == 401


def test_what_a_request_does_is_done_under_its_tenants_salt(api) -> None:
    tenant, _, value = make_key(api)
    other, _, other_value = make_key(api)
    for key in (value, other_value):
        assert api.client(key).post("/v1/chat/completions", json=ASK).status_code == 200
    submitted = api.server.chat.submitted[-2:]
    assert [each.tenant for each in submitted] == [tenant.organization_id, other.organization_id]
    assert [each.cache_salt.partition("/")[0] for each in submitted] == [tenant.cache_salt, other.cache_salt]


def test_a_key_revoked_at_one_gateway_is_refused_by_another_within_refresh_s(open_api, database_url) -> None:
    with (
        open_api(database_url, "first") as first,
        open_api(database_url, "second", refresh_s=0.2) as second,
    ):
        tenant, key_id, value = make_key(first)
        with second.client(value) as client:
            assert client.get("/v1/models").status_code == 200

            async def revoke() -> None:
                async with audited_change(first.server.gateway.store, ACTOR) as change:
                    await revoke_key(change, tenant.organization_id, key_id)

            first.server.do(revoke())
            time.sleep(0.21)
            # At once, unless the database is so slow that keys are taken from memory: then when it answers again.
            wait_for(lambda: client.get("/v1/models").status_code == 401, "the key to be refused")


def test_scopes_are_refused_by_name(api) -> None:
    _, _, no_tiny = make_key(api, scopes=Scopes(models=("vec",)))
    _, _, only_chat = make_key(api, scopes=Scopes(endpoints=("/v1/chat", "/v1/models/")))
    with api.client(no_tiny) as client:
        for path, body in (("/v1/chat/completions", ASK), ("/tokenize", {"model": "tiny", "prompt": "a"})):
            refused = client.post(path, json=body)
            assert refused.status_code == 403
            assert refused.json()["error"]["code"] == "insufficient_permissions"
            assert "models:tiny" in refused.json()["error"]["message"]
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["vec"]
        unseen = client.get("/v1/models/tiny")
        assert unseen.status_code == 404 and "'vec'" in unseen.text
        unknown = client.post("/v1/chat/completions", json=ASK | {"model": "none"})
        assert unknown.status_code == 404 and "tiny" not in unknown.text
        assert client.post("/v1/embeddings", json={"model": "vec", "input": "a"}).status_code == 200
    with api.client(only_chat) as client:
        assert client.post("/v1/chat/completions", json=ASK).status_code == 200
        assert client.get("/v1/models/tiny").status_code == 200
        for path in ("/v1/models", "/v1/chatter", "/v1/embeddings"):
            refused = client.get(path)
            assert refused.status_code == 403 and f"endpoints:{path}" in refused.text


def test_an_open_server_honours_a_key_that_exists_and_takes_all_others_as_anybody(open_api, database_url) -> None:
    with open_api(database_url, mode="open") as api:
        tenant, _, value = make_key(api)
        for key in (value, new_key().value, "none", None):
            assert api.client(key).post("/v1/chat/completions", json=ASK).status_code == 200
        tenants = [each.tenant for each in api.server.chat.submitted]
        assert tenants == [tenant.organization_id, "org-default", "org-default", "org-default"]
        assert all(len(each.cache_salt) > 30 for each in api.server.chat.submitted)
        assert api.admin_key, "a new database has its first key even there"


def test_when_a_key_was_last_used_is_written_at_the_end(open_api, database_url) -> None:
    with open_api(database_url) as api:
        tenant, key_id, value = make_key(api)
        assert api.client(value).get("/v1/models").status_code == 200
    with open_api(database_url) as api:

        async def read():
            async with api.server.gateway.store.reading() as session:
                return await get_key(session, tenant.organization_id, key_id)

        assert abs(api.server.do(read()).last_used_at - time.time()) < 60


def test_a_path_with_a_nul_byte_is_a_bad_request(api) -> None:
    assert api.client(api.admin_key).get("/v1/models/a%00b").status_code == 400
