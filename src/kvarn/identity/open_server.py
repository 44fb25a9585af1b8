"""Servers that ask for no keys: when one does not, and which requests it answers.

Any page that a user's browser has open can send requests to an open server: by a form, or by a name of its own that it
points at 127.0.0.1 once it is loaded (DNS rebinding), after which the browser lets it read the answers. A page cannot
choose what the browser writes into `Host` and `Origin`, so these tell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ipaddress import ip_address
from typing import Literal
from urllib.parse import urlsplit

from kvarn.config.load import ConfigError
from kvarn.config.schema import KvarnConfig
from kvarn.wire.openai.errors import ApiError

Mode = Literal["keys", "open"]


def auth_mode(config: KvarnConfig) -> Mode:
    """The mode of authentication that `auth.mode` means on the address that the server listens on. Raises `ConfigError`
    where it would be open to other machines, or although keys are configured."""
    wanted, host = config.auth.mode, config.gateway.host
    if wanted == "open" and config.auth.api_keys:
        raise ConfigError("auth.mode is 'open', but API keys are configured (auth.api_keys): leave out one of them")
    if wanted == "keys" or config.auth.api_keys:
        return "keys"
    if is_loopback(host):
        return "open"
    if wanted == "open":
        raise ConfigError(
            f"auth.mode is 'open', but other machines reach gateway.host {host!r}: anybody could administer this "
            "server. Leave auth.mode out (keys are asked for then), or listen on 127.0.0.1"
        )
    return "keys"


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own. A name other than `localhost` may be any machine's."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_host(
    headers: Iterable[tuple[bytes, bytes]], allowed_hosts: Collection[str], allowed_origins: Collection[str] = ()
) -> None:
    """Refuse with a 403 a request that was sent to another name than this machine's or `allowed_hosts`, or by a page of
    another site than `allowed_origins`. `*` is no origin: it lets scripts read answers, but their requests are still
    refused here."""
    host = None
    for name, value in headers:
        text = value.decode("latin-1")
        if name == b"host":
            host = text
            _check_header("Host", text, f"//{text}", allowed_hosts)
        elif name == b"origin" and text not in allowed_origins:
            _check_header("Origin", text, text, allowed_hosts)
    if host is None:
        raise _elsewhere("Host", "")


def _check_header(header: str, text: str, url: str, allowed_hosts: Collection[str]) -> None:
    try:
        host = (urlsplit(url).hostname or "").removesuffix(".")
    except ValueError:  # such as half an address in brackets
        raise _elsewhere(header, text) from None
    if not (is_loopback(host) or host.endswith(".localhost") or host in allowed_hosts):
        raise _elsewhere(header, text)


def _elsewhere(header: str, text: str) -> ApiError:
    setting, flag = (
        ("gateway.allowed_origins", "--allowed-origins")
        if header == "Origin"
        else ("auth.allowed_hosts", "--allowed-hosts")
    )
    message = (
        f"This server asks for no keys, so it answers only requests to and from its own machine: the header {header!r} "
        f"names {text[:120]!r}. If that is trusted, add it to {setting} ({flag}); or send an API key."
    )
    return ApiError(403, message, param=header.lower(), code="host_not_allowed")
