"""Several gateway processes behind one port (`gateway.api_server_count`).

The main process supervises the engines and starts the others; all of them serve HTTP. Each other process is joined to
the main one by a pair of sockets: over it go what all have to count together (limits, reservations of budgets), what
the main process knows of the engines, and metrics.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvarn.catalog.models import ServedModel
from kvarn.config.schema import ModelConfig
from kvarn.fleet.desired import Desired
from kvarn.fleet.versions import ServedVersion
from kvarn.replica.client.protocol import ReplicaStatus
from kvarn.wire.messages import AdapterInfo

# Methods that each may call of the other: to a process beside the main one, and from it.
START = "start"  # first: `Start`
REPLICA = "replica"  # at each change: `ReplicaStatus`
VERSION = "version"  # a version of a model will be served: `Version`
VERSION_REMOVED = "version.removed"  # it is served no longer: `RemovedVersion`
SNAPSHOT = "metrics.snapshot"  # what it has counted, as a list of `MetricFamily`
METRICS = "metrics.all"  # to the main process: what all have counted, in the same form
SERVING = "serving"  # to the main process: it takes requests


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a model."""

    model: str  # JSON of the `ModelConfig`
    number: int
    directory: str  # of the checkpoint
    created: int  # when it was first served, as `/v1/models` tells
    is_candidate: bool  # it is rolled out
    adapters: list[AdapterInfo]  # that requests may name

    @classmethod
    def of(cls, served: ServedModel) -> Version:
        """Describe a served version for the other processes."""
        config = served.config.model_dump_json()
        return cls(
            model=config,
            number=served.version,
            directory=str(served.directory),
            created=served.created,
            is_candidate=served.held_back,
            adapters=list(served.adapters.values()),
        )

    def found(self) -> ServedVersion:
        """The version as this process serves it."""
        model = ModelConfig.model_validate_json(self.model)
        desired = Desired(model, self.number, adapters=tuple(self.adapters))
        return ServedVersion(desired, Path(self.directory), self.created, self.is_candidate)


class RemovedVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a model that has no replicas any more."""

    model: str
    number: int


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Message that makes a new process a gateway."""

    number: int  # of this process, from 1 on; never used again
    config: str  # JSON of the `KvarnConfig`
    versions: list[Version]  # that are served
    broken: list[str]  # models whose tokenizer or template the main process cannot load either
    replicas: list[ReplicaStatus]
