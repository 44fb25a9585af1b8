"""An open server answers this machine, and no page of another site through a browser here."""

from __future__ import annotations

import socket

import pytest

from kvarn.config.load import ConfigError
from kvarn.config.platform import AuthConfig
from kvarn.config.schema import KvarnConfig
from kvarn.identity.open_server import auth_mode, check_host
from kvarn.wire.openai.errors import ApiError


def check(host: str | None, origin: str | None = None, *allowed: str) -> None:
    named = ((b"host", host), (b"origin", origin))
    headers = [(name, text.encode("latin-1")) for name, text in named if text is not None]
    check_host([(b"accept", b"*/*"), *headers], allowed)


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:8000", None),
        ("127.8.8.8", None),
        ("localhost:8000", "http://localhost:8000"),
        ("LOCALHOST.", "https://Localhost:3000"),
        ("kvarn.localhost", None),
        ("[::1]:8000", "http://[::1]:8000"),
        ("models.example.org:443", "https://models.example.org"),
    ],
)
def test_requests_to_and_from_this_machine_pass(host: str, origin: str | None) -> None:
    check(host, origin, "models.example.org")


@pytest.mark.parametrize(
    ("host", "origin", "named"),
    [
        ("evil.example:8000", None, "evil.example:8000"),
        ("evil.example", "http://evil.example", "evil.example"),
        ("127.0.0.1.evil.example", None, "127.0.0.1.evil.example"),
        ("evil-localhost", None, "evil-localhost"),
        ("0.0.0.0:8000", None, "0.0.0.0:8000"),
        ("localhost", "https://evil.example", "https://evil.example"),
        ("localhost", "null", "null"),
        ("localhost", "", "''"),
        ("localhost", "http://[", "http://["),
        ("[", None, "["),
        ("[::1", None, "[::1"),
        ("\u00e9[x]", None, "[x]"),
        ("", None, "''"),
        (None, None, "''"),
    ],
)
def test_requests_from_elsewhere_are_refused_by_name(host: str | None, origin: str | None, named: str) -> None:
    with pytest.raises(ApiError) as refusal:
        check(host, origin)
    error = refusal.value
    assert (error.status, error.code) == (403, "host_not_allowed")
    at_fault = (
        "gateway.allowed_origins (--allowed-origins)"
        if error.param == "origin"
        else "auth.allowed_hosts (--allowed-hosts)"
    )
    assert named in error.message and at_fault in error.message


def test_an_open_server_tells_nothing_to_a_name_that_points_at_it(open_api, tmp_path) -> None:
    with open_api(f"sqlite:///{tmp_path}/open.db", mode="open", allowed_hosts=("models.example.org",)) as api:
        nobody, keyed = api.client(None), api.client(api.admin_key)
        kept = nobody.post("/v1/conversations", json={}).json()["id"]
        rebound = {"host": "evil.example", "origin": "http://evil.example"}
        usage = {"start_time": 1790000000}
        for path in (f"conversations/{kept}", "files", "models", "organization/projects", "nothing"):
            refused = nobody.get(f"/v1/{path}", headers=rebound)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "host_not_allowed"), path
        for path in ("usage/completions", "costs"):
            answer = nobody.get(f"/v1/organization/{path}", headers={"host": "evil.example"}, params=usage)
            assert answer.status_code == 403
        assert nobody.delete(f"/v1/conversations/{kept}", headers=rebound).status_code == 403
        assert nobody.get(f"/v1/conversations/{kept}", headers={"host": "models.example.org"}).status_code == 200
        assert keyed.get("/v1/models", headers=rebound).status_code == 200, "a page does not know a key"
        assert nobody.get("/health", headers=rebound).status_code == 200
        for host in ("[", "[::1", "127.0.0.1\r\nOrigin: http://["):
            assert first_line(api.server.url, host) == "HTTP/1.1 403 Forbidden", host


def test_a_server_that_asks_for_keys_may_have_any_name(open_api, tmp_path) -> None:
    with open_api(f"sqlite:///{tmp_path}/keys.db") as api:
        keyed = api.client(api.admin_key)
        for headers in ({"host": "models.example.org"}, {"origin": "https://app.example.org"}):
            assert keyed.get("/v1/organization/projects", headers=headers).status_code == 200


def first_line(url: str, host: str) -> str:
    """What a server answers to a request with a `Host` that no client library would write."""
    address, port = url.removeprefix("http://").split(":")
    with socket.create_connection((address, int(port)), timeout=10) as connection:
        request = f"GET /v1/organization/projects HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        connection.sendall(request.encode())
        return connection.recv(400).decode().splitlines()[0]


def test_an_open_server_lets_in_the_pages_of_an_origin_that_it_names(serve, tmp_path) -> None:
    def prepare(server) -> None:
        names = server.config.gateway.model_copy(update={"allowed_origins": ("https://chat.example",)})
        server.config = server.config.model_copy(update={"gateway": names})
        server.authenticator = None

    with serve(prepare) as server, server.client() as page:
        answer = page.get("/v1/models", headers={"origin": "https://chat.example"})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://chat.example"
        for origin in ("https://evil.example", "http://chat.example", "https://chat.example:444"):
            assert page.get("/v1/models", headers={"origin": origin}).status_code == 403, origin


@pytest.mark.parametrize(("origins", "allowed"), [(None, False), (("*",), True)])
def test_a_page_from_anywhere_needs_a_key_even_where_every_page_may_read(serve, origins, allowed: bool) -> None:
    def prepare(server) -> None:
        names = server.config.gateway.model_copy(update={"allowed_origins": origins})
        server.config = server.config.model_copy(update={"gateway": names})
        server.authenticator = None

    with serve(prepare) as server, server.client() as page:
        refused = page.get("/v1/models", headers={"origin": "https://evil.example"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "host_not_allowed")
        assert ("access-control-allow-origin" in refused.headers) is allowed
        own = page.get("/v1/models", headers={"origin": "http://localhost:3000"})
        assert own.status_code == 200 and own.headers["access-control-allow-origin"] in ("http://localhost:3000", "*")


def test_an_open_server_has_no_keys_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="leave out one of them"):
        auth_mode(KvarnConfig(auth=AuthConfig(mode="open", api_keys=("one",))))
