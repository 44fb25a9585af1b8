"""Signing in with a key, through a real gateway: what a browser gets, what it may do, and how it ends."""

from __future__ import annotations

import time
from http.cookies import SimpleCookie

import httpx

from gateway_fixtures import wait_for
from kvarn.identity.failed_attempts import FailedAttempts
from kvarn.store.keys import new_key
from kvarn.store.owner import Role, Scopes
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.console_sessions import delete_old_sessions
from kvarn.store.repositories.tenants.keys import KeyRequest, add_key, revoke_key
from new_tenants import create_organization

SESSION = "/console/api/session"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


class Browser:
    """A client that keeps cookies, and sends the CSRF token as the console's scripts do."""

    def __init__(self, api, key: str | None = None) -> None:
        self.client = api.client(None)
        if key is not None:
            answer = self.sign_in(key)
            assert answer.status_code == 200, answer.text
            self.told = answer.json()

    def sign_in(self, key: str, **headers: str) -> httpx.Response:
        return self.client.post(SESSION, json={"key": key}, headers=headers)

    @property
    def csrf(self) -> dict[str, str]:
        return {"x-kvarn-csrf": self.client.cookies["kvarn_csrf"]}

    def get(self, path: str) -> httpx.Response:
        return self.client.get(path)


def make_key(api, **asked):
    """A key of a new tenant: the tenant, its id, its value."""

    async def make():
        store = api.server.gateway.store
        tenant = await create_organization(store, "acme")
        async with audited_change(store, Actor("test")) as change:
            key, value = await add_key(
                change, tenant.organization_id, tenant.project_id, KeyRequest(name="ci", **asked)
            )
        return tenant, key.id, value

    return api.server.do(make())


def test_a_signed_in_browser_acts_as_its_key_does_until_it_signs_out(api) -> None:
    tenant, _, value = make_key(api, role=Role.ADMIN)
    browser = Browser(api, value)
    told = browser.get(SESSION).json()
    assert (told["signed_in"], told["role"], told["name"], told["is_platform_admin"]) == (True, "admin", "ci", False)
    assert told["organization"] == {"id": tenant.organization_id, "name": "acme"}
    assert abs(told["expires"] - time.time() - 12 * 3600) < 600
    assert browser.get("/v1/organization/projects").json()["data"][0]["id"] == tenant.project_id
    assert browser.client.post("/v1/chat/completions", json=ASK, headers=browser.csrf).status_code == 200

    cookies = dict(browser.client.cookies)
    assert browser.client.delete(SESSION).status_code == 403, "signing out is a change, too"
    assert browser.client.delete(SESSION, headers=browser.csrf).json()["signed_in"] is False
    assert not browser.client.cookies, "the browser forgets them"
    with httpx.Client(base_url=api.server.url, cookies=cookies) as thief:
        over = thief.get("/v1/models")
        assert over.status_code == 401 and "session is over" in over.json()["error"]["message"]
        assert thief.get(SESSION).json()["signed_in"] is False
    log = api.client(value).get("/v1/organization/audit_logs").json()["data"]
    assert [entry["type"] for entry in log[:2]] == ["logout.succeeded", "login.succeeded"]
    assert value not in str(log)


def test_no_other_page_changes_anything_with_the_cookie(api) -> None:
    browser = Browser(api, api.admin_key)
    path, body = "/v1/organization/projects", {"name": "made"}
    refused = [
        {},
        {"x-kvarn-csrf": ""},
        {"x-kvarn-csrf": browser.csrf["x-kvarn-csrf"][:-1] + "x"},
        browser.csrf | {"origin": "https://evil.example"},
        browser.csrf | {"origin": "null"},
        browser.csrf | {"origin": f"{api.server.url}1"},
        browser.csrf | {"origin": api.server.url, "sec-fetch-site": "cross-site"},
        browser.csrf | {"sec-fetch-site": "same-site"},
    ]
    for headers in refused:
        answer = browser.client.post(path, json=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "csrf_refused"), headers
    for headers in ({"origin": api.server.url}, {"sec-fetch-site": "same-origin"}, {}):
        assert browser.client.post(path, json=body, headers=browser.csrf | headers).status_code == 200
    other = Browser(api, api.admin_key)
    stolen = browser.client.post(path, json=body, headers=other.csrf)
    assert stolen.status_code == 403, "the token of another session"
    signed_in_by_a_page = Browser(api).sign_in(api.admin_key, origin="https://evil.example")
    assert signed_in_by_a_page.status_code == 403 and "set-cookie" not in signed_in_by_a_page.headers
    cross = browser.client.get("/v1/models", headers={"origin": "http://localhost:5173"})
    assert "access-control-allow-credentials" not in cross.headers, "other pages of this machine cannot read with it"


def test_the_cookies_are_new_hold_no_key_and_are_read_by_no_script(api) -> None:
    browser = Browser(api)
    chosen = "kvs-" + "a" * 55
    browser.client.cookies.set("kvarn_session", chosen)
    answer = browser.sign_in(api.admin_key)
    headers = answer.headers.get_list("set-cookie")
    set_cookies = {name: morsel for each in headers for name, morsel in SimpleCookie(each).items()}
    token = set_cookies["kvarn_session"]
    assert token.value != chosen and token.value.startswith("kvs-") and len(token.value) == 59
    assert (token["httponly"], token["samesite"], token["path"], token["secure"]) == (True, "lax", "/", "")
    assert set_cookies["kvarn_csrf"]["httponly"] == "" and set_cookies["kvarn_csrf"].value not in token.value
    assert api.admin_key not in str(headers)
    assert answer.headers["cache-control"] == "no-store"
    with httpx.Client(base_url=api.server.url) as other:
        two = f"kvarn_session={token.value}; kvarn_session={chosen}"
        assert other.get("/v1/models", headers={"cookie": two}).status_code == 401, "one was set by somebody else"
        one = f"x=1; kvarn_session={token.value}"
        assert other.get("/v1/models", headers={"cookie": one}).status_code == 200
        bearer = {"authorization": f"Bearer {token.value}"}
        assert other.get("/v1/models", headers=bearer).status_code == 401, "a session is no key"


def test_a_session_has_the_scopes_of_its_key_and_ends_with_it(api) -> None:
    tenant, key_id, value = make_key(api, scopes=Scopes(endpoints=("/v1/models",)))
    browser = Browser(api, value)
    assert browser.get("/v1/models").status_code == 200
    assert browser.get("/v1/files").status_code == 403
    assert browser.get("/console/api/anything").status_code == 403
    assert browser.get("/v1/organization/projects").status_code == 403

    async def revoke() -> None:
        async with audited_change(api.server.gateway.store, Actor("command line")) as change:
            await revoke_key(change, tenant.organization_id, key_id)

    api.server.do(revoke())
    wait_for(lambda: browser.get("/v1/models").status_code == 401, "the session to end at a gateway that was not told")


def test_another_gateway_knows_the_session_and_hears_of_its_end(open_api, database_url: str) -> None:
    with open_api(database_url) as first, open_api(database_url, "second") as second:
        browser = Browser(first, first.admin_key)
        with httpx.Client(base_url=second.server.url, cookies=dict(browser.client.cookies)) as elsewhere:
            assert elsewhere.get("/v1/models").status_code == 200
            assert browser.client.delete(SESSION, headers=browser.csrf).status_code == 200
            wait_for(lambda: elsewhere.get("/v1/models").status_code == 401, "the other gateway to hear of it")


def test_sessions_end_by_themselves_and_one_key_has_only_so_many(api) -> None:
    first = Browser(api, api.admin_key)
    wrong = Browser(api)
    sessions = api.server.gateway.control.sessions
    sessions.failed = FailedAttempts(clock=lambda: 1000.0)
    answers = [wrong.sign_in(f"kv-{index}") for index in range(21)]
    assert [answer.status_code for answer in answers] == [401] * 20 + [429]
    assert "retry-after" in answers[-1].headers
    assert wrong.sign_in(new_key().value).status_code == 401, "a key that nobody guesses is looked at"
    assert Browser(api).sign_in(api.admin_key).status_code == 200, "others of this address are not shut out"

    store = api.server.gateway.store
    begun, offset = store.now, 0.0

    async def begin_more() -> None:
        principal = await sessions.keys.bearer_of(api.admin_key)
        for _ in range(50):
            nonlocal offset
            offset += 1
            await sessions.begin(principal, Actor("test", principal.key_id), "api_key")

    store.now = lambda: begun() + offset
    try:
        api.server.do(begin_more())
        assert first.get("/v1/models").status_code == 401, "the oldest of more than fifty"
        sessions.failed = FailedAttempts()
        late = Browser(api, api.admin_key)
        assert late.get("/v1/models").status_code == 200
        offset += 12 * 3600 + 1
        assert late.get("/v1/models").status_code == 401
        api.server.do(delete_old_sessions(store))
    finally:
        store.now = begun


def test_a_session_begun_with_a_key_of_the_configuration_ends_when_that_is_taken_out(open_api, database_url) -> None:
    with open_api(database_url, api_keys=("sesame",)) as api:
        browser = Browser(api, "sesame")
        assert (browser.told["role"], browser.told["is_platform_admin"]) == ("service", False)
        assert browser.get("/v1/models").status_code == 200
        assert browser.get("/v1/organization/projects").status_code == 403
        cookies = dict(browser.client.cookies)
    with open_api(database_url, api_keys=("other",)) as api, httpx.Client(base_url=api.server.url) as later:
        later.cookies.update(cookies)
        assert later.get("/v1/models").status_code == 401


def test_on_an_open_server_one_may_sign_in_all_the_same(open_api, database_url: str) -> None:
    with open_api(database_url, mode="open") as api:
        browser = Browser(api)
        assert browser.get(SESSION).json()["signed_in"] is False
        assert browser.sign_in(api.admin_key).json()["signed_in"] is True
        assert browser.client.post("/v1/organization/projects", json={"name": "x"}).status_code == 403, "by the cookie"
        assert browser.client.delete(SESSION, headers=browser.csrf).json()["open"] is True
        assert browser.get("/v1/models").status_code == 200
