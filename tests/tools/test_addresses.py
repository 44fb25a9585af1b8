"""Addresses that requests of projects may be sent to."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from kvarn.config.allowed_places import AllowedPlace
from kvarn.config.tools import ToolsConfig
from kvarn.tools.addresses import AddressRefusedError, AddressRules, is_public, plain

PUBLIC = ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
NOT_PUBLIC = {
    "zero": ["0.0.0.0", "::", "0.1.2.3"],
    "loopback": ["127.0.0.1", "127.8.8.8", "::1"],
    "private": ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1", "fd12:3456::1"],
    "link-local": ["169.254.1.1", "fe80::1", "fec0::1"],
    "metadata": ["169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"],
    "shared": ["100.64.0.1", "100.127.255.255"],
    "multicast": ["224.0.0.1", "239.1.1.1", "ff02::1", "ff0e::1"],
    "reserved": ["240.0.0.1", "255.255.255.255", "192.0.0.1", "198.18.0.1", "4000::1", "::7f00:1"],
    "documentation": ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1"],
    "mapped": ["::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254"],
    "nat64": ["64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1"],
    "6to4": ["2002:7f00:1::", "2002:c0a8:101::1", "192.88.99.1"],
    "teredo": ["2001::1", "2001:0:7f00:1::"],
}


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_asked_by_https_and_never_by_http(address: str) -> None:
    rules = AddressRules()
    rules.check("example.org", 443, [address], encrypted=True)
    with pytest.raises(AddressRefusedError, match="use https"):
        rules.check("example.org", 80, [address], encrypted=False)


@pytest.mark.attack("request forgery")
@pytest.mark.parametrize("kind", NOT_PUBLIC)
def test_addresses_that_are_not_everybodys_are_refused(kind: str) -> None:
    for text in NOT_PUBLIC[kind]:
        assert not is_public(plain(ip_address(text))), text
        with pytest.raises(AddressRefusedError, match=r"not public: this server's operator can allow it"):
            AddressRules().check("example.org", 443, [text], encrypted=True)


@pytest.mark.attack("request forgery")
def test_one_private_address_among_public_ones_refuses_them_all() -> None:
    with pytest.raises(AddressRefusedError):
        AddressRules().check("example.org", 443, ["1.1.1.1", "10.0.0.1"], encrypted=True)


@pytest.mark.attack("request forgery")
def test_a_refusal_does_not_tell_the_address_that_a_name_leads_to() -> None:
    with pytest.raises(AddressRefusedError) as error:
        AddressRules().check("db.internal", 443, ["10.7.7.7"], encrypted=True)
    assert "10.7.7.7" not in str(error.value)


@pytest.mark.parametrize(
    ("place", "host", "port", "address", "allowed"),
    [
        ("10.0.0.0/8", "a", 1, "10.2.3.4", True),
        ("10.0.0.0/8", "a", 1, "192.168.3.4", False),
        ("10.0.0.0/8", "a", 1, "::ffff:10.2.3.4", True),
        ("127.0.0.1:8001", "localhost", 8001, "127.0.0.1", True),
        ("127.0.0.1:8001", "localhost", 5432, "127.0.0.1", False),
        ("[::1]:8001", "localhost", 8001, "::1", True),
        ("::1", "localhost", 9, "::1", True),
        ("tools.internal", "Tools.Internal.", 443, "10.9.9.9", True),
        ("tools.internal", "evil.tools.internal", 443, "10.9.9.9", False),
        ("tools.internal:443", "tools.internal", 80, "10.9.9.9", False),
    ],
)
def test_the_deployment_allows_places_by_host_network_and_port(
    place: str, host: str, port: int, address: str, allowed: bool
) -> None:
    rules = AddressRules([AllowedPlace.parse(place)])
    if allowed:
        rules.check(host, port, [address], encrypted=False)
    else:
        with pytest.raises(AddressRefusedError):
            rules.check(host, port, [address], encrypted=True)


@pytest.mark.parametrize("text", ["", "http://a", "a b", "host:0", "host:70000", "*"])
def test_a_place_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no host, address or network|no port"):
        AllowedPlace.parse(text)
    with pytest.raises(ValueError, match="allow_private"):
        ToolsConfig(allow_private=[text])
