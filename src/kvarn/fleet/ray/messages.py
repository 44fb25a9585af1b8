"""Messages between the gateway and its Ray agent (`fleet/ray/agent.py`), without importing Ray."""

from __future__ import annotations

import msgspec

from kvarn.fleet.placement.packing import Needs
from kvarn.replica.endpoint import Endpoint


class Host(msgspec.Struct, frozen=True):
    """Ask for the address of this machine in the cluster."""


class ListPlaces(msgspec.Struct, frozen=True):
    """Ask for the places of all engine processes, by name."""


class StopEngine(msgspec.Struct, frozen=True):
    name: str


class Launch(msgspec.Struct, frozen=True):
    """Start an engine process; answered by `Launched`."""

    name: str
    spec: bytes
    """JSON of the `ReplicaSpec`."""
    needs: Needs
    timeout_s: float


class Place(msgspec.Struct, frozen=True):
    """The place of an engine process."""

    endpoint: Endpoint
    pid: int
    node: str
    """Ray's id of the machine."""


class Launched(msgspec.Struct, frozen=True):
    """The place of a new engine process, or the problem."""

    place: Place | None = None
    problem: str = ""


class Announced(msgspec.Struct, frozen=True):
    """Ray drains the machine of an engine process, which it ends in so many seconds."""

    name: str
    notice_s: float


class Ended(msgspec.Struct, frozen=True):
    """An engine process is gone for certain."""

    name: str
    reason: str | None
