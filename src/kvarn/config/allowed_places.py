"""Hosts, addresses and networks that a setting names."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_HOST = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_")


@dataclass(frozen=True, slots=True)
class AllowedPlace:
    """A host, an address or a network that the deployment allows, of one port or of all."""

    text: str
    host: str | None = None
    network: Network | None = None
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> AllowedPlace:
        """Read `10.0.0.0/8`, `127.0.0.1:8001`, `[::1]:8001` or `tools.internal`. Raises `ValueError`."""
        place, port = text.strip(), None
        head, colon, tail = place.rpartition(":")
        if colon and tail.isascii() and tail.isdigit() and (":" not in head or head.endswith("]")):
            place, port = head, int(tail)
            if not 0 < port < 65536:
                raise ValueError(f"{text!r} has no port between 1 and 65535")
        place = place.removeprefix("[").removesuffix("]")
        try:
            return cls(text, network=ip_network(place, strict=False), port=port)
        except ValueError:
            pass
        if not place or not _HOST.issuperset(place):
            raise ValueError(f"{text!r} is no host, address or network, such as 'tools.internal' or '10.0.0.0/8'")
        return cls(text, host=_bare(place), port=port)

    def holds(self, host: str, port: int, address: Address) -> bool:
        if self.port not in (None, port):
            return False
        if self.network is not None:
            return address in self.network
        return _bare(host) == self.host


def _bare(host: str) -> str:
    return host.lower().rstrip(".")
