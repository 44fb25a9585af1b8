"""Addresses of an engine process and of gateway processes: Unix sockets on one machine, TCP with keys between two.

Over TCP each connection is encrypted, and each end knows the other by its key (CurveZMQ, RFC 26): a process that has
none of a replica's keys can neither send to its engine nor be taken for it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket

import msgspec
import zmq

from kvarn.replica.addresses import client_address, engine_address, supervisor_address


class CurveKeys(msgspec.Struct, frozen=True, kw_only=True):
    """One pair of keys for a replica's engine and one for the gateway processes that use it, as text (Z85)."""

    engine: str
    engine_secret: str = ""
    gateway: str
    gateway_secret: str = ""

    @classmethod
    def make(cls) -> CurveKeys:
        (engine, engine_secret), (gateway, gateway_secret) = zmq.curve_keypair(), zmq.curve_keypair()
        return cls(
            engine=engine.decode(),
            engine_secret=engine_secret.decode(),
            gateway=gateway.decode(),
            gateway_secret=gateway_secret.decode(),
        )

    def for_engine(self) -> CurveKeys:
        return msgspec.structs.replace(self, gateway_secret="")

    def for_gateway(self) -> CurveKeys:
        return msgspec.structs.replace(self, engine_secret="")


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    engine: str = ""
    """ZMQ address that the engine reads."""
    directory: str = ""
    """Directory of the Unix sockets; empty: TCP."""
    gateway_host: str = ""
    """Over TCP: address of the gateway's machine, on which its processes listen for the engine."""
    keys: CurveKeys | None = None

    @classmethod
    def local(cls, directory: str) -> Endpoint:
        return cls(engine=engine_address(directory), directory=directory)

    def supervisor(self) -> str:
        """ZMQ address that the supervisor binds; over TCP it takes a free port."""
        return supervisor_address(self.directory) if self.directory else tcp_address(self.gateway_host, "*")

    def client(self, gateway: int) -> str:
        return client_address(self.directory, gateway) if self.directory else tcp_address(self.gateway_host, "*")


def tcp_address(host: str, port: int | str) -> str:
    with contextlib.suppress(ValueError):  # a name
        host = f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    return f"tcp://{host}:{port}"


def free_address(host: str) -> str:
    """ZMQ address with a port of this machine that was free just now; it may be taken before it is bound. Raises
    OSError where the host is not this machine."""
    family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family) as probe:
        probe.bind(address)
        return tcp_address(host, probe.getsockname()[1])
