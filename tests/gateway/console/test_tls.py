"""HTTPS and sign-in at a provider, end to end; certificates that are renewed; proxies that end TLS."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from certificates import write_certificate
from kvarn.config.console import ConsoleConfig, OidcConfig
from kvarn.config.gateway import GatewayConfig
from kvarn.gateway.server import Certificate, build_server
from oidc_provider import CLIENT_ID, SECRET, OidcProvider, oidc_provider

SESSION, START = "/console/api/session", "/console/api/oidc/start"


@pytest.fixture
def provider() -> Iterator[OidcProvider]:
    with oidc_provider() as made:
        yield made


@pytest.fixture
def prepared_sqlite_url(prepared_sqlite: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copyfile(prepared_sqlite, tmp_path / 'kvarn.db')}"


@pytest.fixture
def console(provider: OidcProvider) -> ConsoleConfig:
    domains = ("acme.example",)
    oidc = OidcConfig(issuer=provider.url, client_id=CLIENT_ID, client_secret=SECRET, allowed_domains=domains)
    return ConsoleConfig(oidc=oidc)


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Settings of a server with a certificate of its own, which clients trust."""
    file, key = write_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    return {"ssl_certfile": str(file), "ssl_keyfile": str(key)}


def redirect_uri(answer: httpx.Response) -> str:
    return parse_qs(urlsplit(answer.headers["location"]).query)["redirect_uri"][0]


def test_a_person_signs_in_over_https_with_cookies_that_no_other_connection_carries(
    open_api, prepared_sqlite_url, console, certificate
) -> None:
    with open_api(prepared_sqlite_url, console=console, gateway=certificate) as api, api.client(None) as browser:
        page = browser.get("/console/")
        assert page.status_code == 200 and "default-src 'self'" in page.headers["content-security-policy"]
        begun = browser.get(START, headers={"x-forwarded-proto": "http"})
        assert redirect_uri(begun) == f"{api.server.url}/console/api/oidc/callback", "nobody's headers are believed"
        back = httpx.get(begun.headers["location"]).headers["location"]
        assert back.startswith("https://")
        answer = browser.get(back)
        assert answer.status_code == 302, answer.text
        made = [each for each in answer.headers.get_list("set-cookie") if "Max-Age=0" not in each]
        assert all("Secure" in each for each in made) and {each.partition("=")[0] for each in made} == {
            "__Host-kvarn_session",
            "kvarn_csrf",
        }
        assert browser.get(SESSION).json()["name"] == "Ada"
        csrf = {"x-kvarn-csrf": browser.cookies["kvarn_csrf"], "origin": api.server.url}
        assert browser.delete(SESSION, headers=csrf).json()["signed_in"] is False
        with pytest.raises(httpx.HTTPError):
            httpx.get(api.server.url.replace("https", "http") + "/health")


@pytest.mark.parametrize(
    ("believed", "peer", "seen"),
    [
        ((), "127.0.0.1", ("http", "127.0.0.1")),
        (("127.0.0.0/8",), "127.0.0.1", ("https", "203.0.113.7")),
        (("10.0.0.0/8", "203.0.113.7"), "127.0.0.1", ("http", "127.0.0.1")),
        (("*",), "198.51.100.1", ("https", "203.0.113.7")),
        (("10.0.0.0/8", "*"), "198.51.100.1", ("https", "203.0.113.7")),
    ],
)
async def test_a_proxy_is_believed_where_the_configuration_names_it(
    believed: tuple[str, ...], peer: str, seen: tuple[str, str]
) -> None:
    scopes: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)

    server = build_server(application, GatewayConfig(forwarded_allow_ips=believed))
    told = [(b"x-forwarded-proto", b"https"), (b"x-forwarded-for", b"203.0.113.7")]
    await server.config.loaded_app({"type": "http", "scheme": "http", "client": (peer, 1), "headers": told}, None, None)
    assert (scopes[0]["scheme"], scopes[0]["client"][0]) == seen


def test_networks_of_proxies_are_checked() -> None:
    GatewayConfig(forwarded_allow_ips=("10.0.0.0/8", "::1", "*"))
    for wrong in ("10.0.0.1/8", "proxy.example.com", "10.0.0.0/99"):
        with pytest.raises(ValueError, match="forwarded_allow_ips"):
            GatewayConfig(forwarded_allow_ips=(wrong,))


async def test_a_renewed_certificate_is_used_and_one_that_cannot_be_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, key = write_certificate(tmp_path)
    config = GatewayConfig(ssl_certfile=str(file), ssl_keyfile=str(key))

    async def application(scope: Any, receive: Any, send: Any) -> None: ...

    settings = build_server(application, config).config
    assert settings.callback_notify is not None and settings.ssl is not None
    certificate = Certificate(config, settings.ssl)

    async def shown() -> bytes:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=settings.ssl)
        async with server:
            address = server.sockets[0].getsockname()
            return (await asyncio.to_thread(ssl.get_server_certificate, address)).encode().strip()

    first = file.read_bytes().strip()
    assert await shown() == first
    await certificate.refresh()
    write_certificate(tmp_path)
    assert await shown() == first != file.read_bytes().strip()
    await certificate.refresh()
    renewed = file.read_bytes().strip()
    assert await shown() == renewed
    key.write_text("half a file")
    for _ in range(2):
        await certificate.refresh()
    assert await shown() == renewed, "the one before it"
    (error,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert str(key) in error.getMessage() and "the one before it is used" in error.getMessage()
