"""Whether a server asks for keys."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Literal

from kvarn.config.load import ConfigError
from kvarn.config.schema import KvarnConfig

Mode = Literal["keys", "open"]


def auth_mode(config: KvarnConfig) -> Mode:
    """What `auth.mode` means on the address that the server listens on.

    Raises:
        ConfigError: It would be open to other machines, or although keys are configured.
    """
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
