"""The addresses that a project's servers may have: public ones, and those that the deployment allows.

A name says nothing about where it leads, so names are never judged: the addresses that it resolves to are, and the
connection goes to the address that was judged (`http_client.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

from kvarn.config.allowed_places import Address, AllowedPlace

_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_REFUSED = tuple(
    map(
        ip_network,
        (
            "100.64.0.0/10",  # shared by a provider's customers
            "168.63.129.16/32",  # Azure's machine agent: an address that looks public
            "192.0.0.0/24",
            "192.88.99.0/24",  # relays of 6to4
            "2001::/23",  # Teredo, ORCHID and other protocols' own
            "2001:db8::/32",
            "2002::/16",  # 6to4
            "3fff::/20",  # documentation
        ),
    )
)


class AddressRefusedError(Exception):
    """An address that requests of projects must not be sent to. The message names what was asked for, never the
    address that it led to: that would tell a client about the network inside."""


@dataclass(frozen=True, slots=True)
class AddressRules:
    allowed: Sequence[AllowedPlace] = ()
    trusted: bool = False
    """Whether any address may be asked: for servers that the operator's configuration names."""

    def allows_privately(self, host: str, port: int, address: Address) -> bool:
        """Whether the deployment allows it by name: then plain HTTP does too."""
        return self.trusted or any(place.holds(host, port, address) for place in self.allowed)

    def check(self, host: str, port: int, addresses: Sequence[str], *, encrypted: bool) -> None:
        """Raise `AddressRefusedError` unless requests may be sent to each of these addresses of a host."""
        if not addresses:
            raise AddressRefusedError(f"{shown(host)} has no address")
        for text in addresses:
            address = plain(ip_address(text.partition("%")[0]))
            if self.allows_privately(host, port, address):
                continue
            if not is_public(address):
                raise AddressRefusedError(
                    f"{shown(host)} leads to an address that is not public: this server's operator can allow it in "
                    "tools.allow_private"
                )
            if not encrypted:
                raise AddressRefusedError(f"{shown(host)} is asked without encryption: use https://")


def plain(address: Address) -> Address:
    """The IPv4 address that an IPv6 form of it stands for (mapped, or translated by NAT64); others as they are."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_public(address: Address) -> bool:
    """Whether anybody on the internet can have this address, and nobody else."""
    if any(address in network for network in _REFUSED if network.version == address.version):
        return False
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def shown(host: str) -> str:
    """A host as a message may name it."""
    return repr(host[:200])
