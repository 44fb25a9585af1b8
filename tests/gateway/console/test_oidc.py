"""Sign-in of people at an identity provider, from the first redirect to the session, over real HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from kvarn.config.console import ConsoleConfig, OidcConfig
from kvarn.identity.oidc.attempt import relative_page
from oidc_provider import CLIENT_ID, SECRET, OidcProvider, oidc_provider

SESSION, START = "/console/api/session", "/console/api/oidc/start"


@pytest.fixture
def provider() -> Iterator[OidcProvider]:
    with oidc_provider() as made:
        yield made


@pytest.fixture
def connected(open_api, database_url, provider, tmp_path) -> Callable[..., Any]:
    """`with connected(allowed_domains=…) as api`: a gateway whose people sign in at the provider."""

    @contextmanager
    def make(**settings: Any) -> Iterator[Any]:
        secret = tmp_path / "secret"
        secret.write_text(SECRET + "\n")
        wanted = {"allowed_domains": ("acme.example",)} | settings
        oidc = OidcConfig(issuer=provider.url, client_id=CLIENT_ID, client_secret_file=str(secret), **wanted)
        with open_api(database_url, console=ConsoleConfig(oidc=oidc)) as api:
            yield api

    return make


def go(client: httpx.Client, page: str = "") -> httpx.Response:
    """A browser's way through the provider: the callback's answer."""
    begun = client.get(START, params={"next": page})
    assert begun.status_code == 302, begun.text
    return client.get(httpx.get(begun.headers["location"]).headers["location"])


def test_a_person_signs_in_and_acts_with_the_role_that_the_provider_gives(connected, provider) -> None:
    settings = {"name": "Acme ID", "role_claim": "groups", "admin_values": ("ops",)}
    with connected(**settings) as api, api.client(None) as browser:
        feature = browser.get(SESSION).json()["features"]["oidc"]
        assert feature == {"name": "Acme ID", "path": START.removeprefix("/")}
        begun = browser.get(START, params={"next": "requests?model=tiny"})
        cookie = begun.headers["set-cookie"]
        assert (
            "HttpOnly" in cookie and "SameSite=lax" in cookie and "requests" not in cookie and "Max-Age=600" in cookie
        )
        back = httpx.get(begun.headers["location"]).headers["location"]
        answer = browser.get(back)
        assert (answer.status_code, answer.headers["location"]) == (302, "../../requests?model=tiny"), answer.text
        assert set(browser.cookies) == {"kvarn_session", "kvarn_csrf"}
        told = browser.get(SESSION).json()
        assert (told["signed_in"], told["name"], told["role"]) == (True, "Ada", "member")
        assert told["project"]["id"] == "proj_default"
        assert browser.get("/v1/models").status_code == 200
        assert browser.get("/v1/organization/projects").status_code == 403

        provider.claims["groups"] = ["dev", "ops"]
        with api.client(None) as second:
            assert go(second).status_code == 302
            csrf = {"x-kvarn-csrf": second.cookies["kvarn_csrf"]}
            made = second.post("/v1/organization/projects", json={"name": "x"}, headers=csrf)
            assert (second.get(SESSION).json()["role"], made.status_code) == ("admin", 200)
        assert browser.get("/v1/organization/projects").status_code == 200, "one user, whose role is read each time"
        log = api.client(api.admin_key).get("/v1/organization/audit_logs").json()["data"]
        acts = ["login.succeeded", "login.succeeded", "project.created", "user.added", "user.added", "user.updated"]
        assert sorted(entry["type"] for entry in log[:6]) == acts
        assert log[0]["actor"]["session"]["user"]["email"] == "ada@acme.example"
        users = api.client(api.admin_key).get("/v1/organization/users").json()["data"]
        assert [(user["email"], user["role"]) for user in users] == [("ada@acme.example", "owner")]
        api.client(api.admin_key).delete(f"/v1/organization/users/{users[0]['id']}").raise_for_status()
        assert browser.get("/v1/models").status_code == 401, "sessions go with the user"

        again = browser.get(back)
        assert (again.status_code, "sign_in_lost" in again.text) == (400, True), "a callback holds once"


def test_what_is_wrong_with_a_token_is_refused_and_said(connected, provider) -> None:
    now = int(time.time())
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"nonce": "another"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"exp": now - 61 - 10}, "compare the clocks"),
        ({"aud": "another"}, "aud"),
        ({"aud": [CLIENT_ID, "another"]}, "azp"),
        ({"iss": "https://evil.example"}, "iss"),
        ({"iat": now + 600}, "not valid"),
        ({"email_verified": False}, "require_verified_email"),
        ({"email": "eve@evil.example"}, "allowed_domains"),
        ({"email": "eve@acme.example.evil.example"}, "allowed_domains"),
        ({"email": "eve@evil.example@acme.example"}, "told no address"),
        ({"email": "<script>alert(1)</script>@evil.example"}, "allowed_domains"),
    ]
    with connected() as api, api.client(None) as browser:
        for changed, said in wrong:
            provider.changed = changed
            answer = go(browser)
            assert answer.status_code == 403 and said in answer.text, (changed, answer.text)
            assert "kvarn_session" not in browser.cookies and "<script>" not in answer.text
            assert "default-src 'self'" in answer.headers["content-security-policy"]
        provider.changed = {}
        provider.unsigned = True
        assert "signed in a way that is not accepted" in go(browser).text
        provider.unsigned = False
        provider.spoils_signature = True
        assert go(browser).status_code == 403
        provider.spoils_signature = False
        provider.changed = {"exp": int(time.time()) - 30, "email": None}
        assert go(browser).status_code == 302, "clocks may differ by a minute; the address comes with the user info"


def test_the_callback_takes_only_what_this_browser_began(connected, provider) -> None:
    with connected() as api, api.client(None) as browser, api.client(None) as victim:
        begun = browser.get(START)
        location = httpx.URL(httpx.get(begun.headers["location"]).headers["location"])
        assert victim.get(location).status_code == 400, "a link to an attacker's sign-in"
        for changes in ({"state": "another"}, {"state": ""}, {"code": ""}):
            assert browser.get(location.copy_merge_params(changes)).status_code == 400
        assert browser.get(location.copy_merge_params({"iss": "https://evil.example"})).status_code == 403
        denied = browser.get(location.copy_merge_params({"error": "access_<denied>"}))
        assert denied.status_code == 403 and "access_&lt;denied&gt;" in denied.text
        used = provider.asked.count("/token")
        assert used == 0, "no code has been shown to the provider"
        victim.cookies.set("kvarn_sign_in", "gAAAAABforged")
        assert victim.get(location).status_code == 400
        store = api.server.gateway.store
        oidc = api.server.gateway.control.oidc
        oidc._now = lambda: store.now() + 601
        assert browser.get(location).status_code == 400, "too late"


def test_new_keys_of_the_provider_are_found_and_its_absence_is_said(connected, provider) -> None:
    with connected() as api, api.client(None) as browser:
        assert go(browser).status_code == 302
        assert go(browser).status_code == 302
        assert provider.asked.count("/keys") == 1, "kept"
        provider.rotate()
        assert go(browser).status_code == 302
        assert provider.asked.count("/keys") == 2
        oidc = api.server.gateway.control.oidc
        oidc.provider._metadata = None
        provider.issuer = "https://another.example"
        wrong = browser.get(START)
        assert (wrong.status_code, "names another issuer" in wrong.text) == (502, True)
        provider.stop()
        away = browser.get(START)
        assert away.status_code == 502 and "cannot be reached" in away.text and "API key works" in away.text


def test_who_may_not_sign_in_hears_what_to_do(connected, provider) -> None:
    with connected(allowed_domains=()) as api, api.client(None) as browser:
        answer = go(browser)
        assert answer.status_code == 403 and "is no user of this server" in answer.text
        admin = api.client(api.admin_key)
        admin.post("/v1/organization/users", json={"email": "ADA@acme.example", "role": "reader"}).raise_for_status()
        answer = go(browser)
        assert answer.status_code == 403 and "is in no project" in answer.text
        admin.post(
            "/v1/organization/projects/proj_default/users", json={"email": "ada@acme.example", "role": "member"}
        ).raise_for_status()
        assert go(browser).status_code == 302


def test_without_a_provider_the_way_to_it_is_a_page_that_says_so(api) -> None:
    with api.client(None) as browser:
        answer = browser.get(START)
    assert (answer.status_code, "console.oidc" in answer.text) == (404, True)


@pytest.mark.parametrize(
    ("page", "kept"),
    [
        ("requests?model=a&x=%2f", True),
        ("live", True),
        ("https://evil.example", False),
        ("//evil.example", False),
        ("/\\evil.example", False),
        ("javascript:alert(1)", False),
        ("a\r\nset-cookie: x=1", False),
        ("../v1/files", False),
        ("x" * 2000, False),
    ],
)
def test_after_signing_in_one_goes_on_to_a_page_of_the_console_only(page: str, kept: bool) -> None:
    assert relative_page(page) == (page if kept else "")
