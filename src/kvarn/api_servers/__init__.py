"""Several gateway processes behind one port (`gateway.api_server_count`).

The main process supervises the engines and starts the others; all of them serve HTTP. Each other process is joined to
the main one by a pair of sockets: over it go what all have to count together (limits, reservations of budgets), what
the main process knows of the engines, and metrics.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvarn.config.model import ModelConfig
from kvarn.fleet.desired import Desired
from kvarn.fleet.versions import ServedVersion
from kvarn.replica.client.protocol import ReplicaStatus
from kvarn.wire.messages import AdapterInfo


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a model will be served; answered once its text is loaded."""

    model: str  # JSON of the `ModelConfig`
    number: int
    directory: str  # of the checkpoint
    created: int  # when it was first served, as `/v1/models` tells
    is_candidate: bool  # it is rolled out
    adapters: list[AdapterInfo]  # that requests may name

    @classmethod
    def of(cls, served: ServedVersion) -> Version:
        return cls(
            model=served.desired.model.model_dump_json(),
            number=served.desired.version,
            directory=str(served.directory),
            created=served.created,
            is_candidate=served.is_candidate,
            adapters=list(served.desired.adapters),
        )

    def served(self) -> ServedVersion:
        model = ModelConfig.model_validate_json(self.model)
        desired = Desired(model, self.number, adapters=tuple(self.adapters))
        return ServedVersion(desired, Path(self.directory), self.created, self.is_candidate)


class VersionRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a model has no replicas any more."""

    model: str
    number: int


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """First message: it makes a new process a gateway."""

    number: int  # of this process, from 1 on; never used again
    config: str  # JSON of the `KvarnConfig`
    versions: list[Version]  # that are served
    broken: list[str]  # models whose tokenizer or template the main process cannot load either
    replicas: list[ReplicaStatus]


class Serving(msgspec.Struct, frozen=True):
    """To the main process: this one takes requests."""


class ReadMetrics(msgspec.Struct, frozen=True):
    """Ask what a process has counted; answered by a list of `MetricFamily`. The main process answers for all."""
