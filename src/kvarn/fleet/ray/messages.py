"""What the gateway and the process that speaks to Ray for it (`ray_agent`) tell each other, without importing Ray."""

from __future__ import annotations

import msgspec

from kvarn.fleet.placement.packing import Needs
from kvarn.replica.endpoint import Endpoint


class Launch(msgspec.Struct, frozen=True):
    """Start an engine process; answered by `Launched`."""

    name: str
    spec: msgspec.Raw
    """JSON of the `ReplicaSpec`."""
    needs: Needs
    timeout_s: float


class Place(msgspec.Struct, frozen=True):
    """Where an engine process runs."""

    endpoint: Endpoint
    """As gateway processes use it."""
    pid: int
    node: str
    """Ray's id of the machine."""


class Launched(msgspec.Struct, frozen=True):
    """Where it runs, or why it does not."""

    place: Place | None = None
    problem: str = ""


class Ended(msgspec.Struct, frozen=True):
    """An engine process is gone for certain."""

    name: str
    reason: str | None
