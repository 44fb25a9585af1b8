"""Cookies of sessions: names, attributes, and from which pages changes are taken."""

from __future__ import annotations

import pytest

from kvarn.config.schema import KvarnConfig
from kvarn.identity.failed_attempts import FailedAttempts
from kvarn.identity.session_cookies import SessionCookies, cookies, csrf_of
from kvarn.store.keys import is_key, is_session_lookup, lookup_of, new_key, new_session_token, session_lookup_of
from kvarn.wire.openai.errors import ApiError


def session_cookies(url: str | None = None, **gateway: str) -> SessionCookies:
    models = [{"name": "tiny", "path": "tiny"}]
    return SessionCookies(KvarnConfig.model_validate({"models": models, "console": {"url": url}, "gateway": gateway}))


@pytest.mark.parametrize(
    ("made", "name", "secure", "path"),
    [
        (session_cookies(), "kvarn_session", False, "/"),
        (session_cookies(root_path="/llm"), "kvarn_session", False, "/llm"),
        (session_cookies(ssl_certfile="c.pem"), "__Host-kvarn_session", True, "/"),
        (session_cookies("https://llm.example/"), "__Host-kvarn_session", True, "/"),
        (session_cookies("https://example.com/llm", root_path="/llm"), "kvarn_session", True, "/llm"),
        (session_cookies("http://llm.example"), "kvarn_session", False, "/"),
    ],
)
def test_cookies_are_as_narrow_as_the_address_allows(made, name, secure, path) -> None:
    assert (made.session, made.is_secure, made.path) == (name, secure, path)


def test_a_cookie_that_a_server_of_the_same_domain_could_have_set_is_not_taken_under_tls() -> None:
    token = new_session_token().value
    secure = session_cookies("https://llm.example")
    assert secure.token([(b"cookie", f"kvarn_session={token}".encode())]) is None
    assert secure.token([(b"cookie", f"a=b; __Host-kvarn_session={token}".encode())]) == token
    assert secure.token([(b"cookie", b"__Host-kvarn_session=no token")]) is None
    assert cookies([(b"cookie", b"a=1; b=2"), (b"cookie", b"a=3;a=")], "a") == ["1", "3", ""]


def scope(method: str = "POST", **headers: str) -> dict[str, object]:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"method": method, "headers": [(b"host", b"proxied:8000"), *pairs]}


def test_behind_a_proxy_that_changes_host_changes_are_taken_from_the_consoles_address() -> None:
    token = new_session_token().value
    known, unknown = session_cookies("https://LLM.example/kvarn"), session_cookies()
    sent = scope(origin="https://llm.example", x_kvarn_csrf=csrf_of(token))
    known.check_change(sent, token)
    with pytest.raises(ApiError, match=r"console\.url"):
        unknown.check_change(sent, token)
    for origin in ("http://llm.example", "https://llm.example.evil.example", "https://llm.example:444"):
        with pytest.raises(ApiError):
            known.check_change(scope(origin=origin, x_kvarn_csrf=csrf_of(token)), token)
    unknown.check_change(scope(origin="http://proxied:8000", x_kvarn_csrf=csrf_of(token)), token)
    unknown.check_change(scope("GET", origin="https://evil.example"), token)
    for method in ("POST", "PUT", "PATCH", "DELETE", "TRACE"):
        with pytest.raises(ApiError):
            unknown.check_change(scope(method), token)


def test_tokens_of_sessions_are_no_keys() -> None:
    token, key = new_session_token(), new_key()
    assert not is_key(token.value) and is_session_lookup(token.lookup)
    assert session_lookup_of(token.value) == token.lookup and not is_session_lookup(lookup_of(key.value))


def test_failed_attempts_are_bounded_by_address_and_minute() -> None:
    now = 0.0
    failed = FailedAttempts(lambda: now)
    for _ in range(20):
        failed.check("10.0.0.1")
        failed.note("10.0.0.1")
        failed.note("2001:db8::1")
    for address in ("10.0.0.1", "2001:db8::2"):
        with pytest.raises(ApiError) as refused:
            failed.check(address)
        assert (refused.value.status, refused.value.headers["retry-after"]) == (429, "60")
    failed.check("10.0.0.2")
    failed.check("2001:db8:0:1::1")
    now = 60.0
    failed.check("10.0.0.1")
    for index in range(5000):
        failed.note(f"host-{index}")
    assert len(failed._failures) <= 4096
