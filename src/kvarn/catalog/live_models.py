"""The models that a gateway process serves, as versions come and go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from kvarn.catalog.models import ServedModel, sandbox_limits
from kvarn.config.gateway import GatewayConfig
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.fleet.versions import ServedVersion
from kvarn.replica.client.protocol import ReplicaState, ReplicaStatus

_log = logging.getLogger("kvarn.catalog")


class LiveModels:
    """A `FleetListener`. While a version replaces another both answer, in proportion to their ready replicas; one that
    is rolled out answers what its rollout gives it."""

    def __init__(self, config: GatewayConfig, process: int = 0) -> None:
        self.by_name: dict[str, ServedModel] = {}
        """The version of each model that has most ready replicas. The same object always."""
        self.on_added: Callable[[ServedModel], None] = lambda model: None
        """Told of each version before it serves."""
        self._limits = sandbox_limits(config)
        self._process = process
        self._versions: dict[tuple[str, int], ServedModel] = {}
        self._loading: dict[tuple[str, int], ServedModel] = {}
        self._early: dict[str, ReplicaStatus] = {}
        """Latest status of each replica whose version is still being loaded here."""
        self._closing: set[asyncio.Future[None]] = set()

    @property
    def versions(self) -> list[ServedModel]:
        return list(self._versions.values())

    def add(self, version: ServedVersion) -> None:
        """Serve a version from the start; the application loads its text."""
        self._serve(self._made(version))

    def version_added(self, version: ServedVersion) -> Coroutine[Any, Any, None]:
        """One whose text cannot be read is not served. It is known when this returns: it may be removed while it is
        loaded."""
        served = self._made(version)
        self._loading[served.name, served.version] = served
        return self._load(served)

    async def _load(self, served: ServedModel) -> None:
        key = served.name, served.version
        try:
            await served.load_text(None, self._limits)
            if self._loading.get(key) is served:
                self._serve(served)
                _log.info("a version is served", extra={"model": served.name, "version": served.version})
        finally:
            if self._loading.get(key) is served:
                del self._loading[key]
            else:
                await served.close()

    def replica_added(self, supervisor: EngineSupervisor) -> None:
        supervisor.subscribe(self.update)

    def version_removed(self, model: str, version: int) -> None:
        """Requests that it still answers go on."""
        self._loading.pop((model, version), None)
        self._early = {
            name: each for name, each in self._early.items() if (each.model, each.version) != (model, version)
        }
        served = self._versions.pop((model, version), None)
        self._relate(model)
        if served is not None:
            served.replicas.tell_changed()
            closing = asyncio.ensure_future(served.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def update(self, status: ReplicaStatus) -> None:
        served = self._versions.get((status.model, status.version))
        if served is None and status.state is not ReplicaState.GONE:
            self._early[status.replica] = status
        elif served is None:
            self._early.pop(status.replica, None)
        else:
            served.replicas.update(status)
            self._relate(status.model)

    def load_of(self, replica: str) -> int:
        clients = [served.replicas.get(replica) for served in self._versions.values()]
        return sum(each.stats.running + each.stats.waiting for each in clients if each is not None)

    def close(self) -> None:
        for served in self._versions.values():
            served.replicas.close()

    def _made(self, version: ServedVersion) -> ServedModel:
        model, number = version.desired.model, version.desired.version
        return ServedModel(
            model.name,
            model,
            [],
            version.directory,
            version.created,
            process=self._process,
            version=number,
            held_back=version.is_candidate,
            kept_adapters=version.desired.adapters,
        )

    def _serve(self, served: ServedModel) -> None:
        self.on_added(served)
        self._versions[served.name, served.version] = served
        self.by_name.setdefault(served.name, served)
        early = [each for each in self._early.values() if (each.model, each.version) == (served.name, served.version)]
        for status in early:
            served.replicas.update(self._early.pop(status.replica))
        self._relate(served.name)

    def _relate(self, name: str) -> None:
        """Each version knows the others; the one with most ready replicas stands for all."""
        versions = [each for (model, _), each in self._versions.items() if model == name]
        for each in versions:
            each.versions = versions
            each.replicas.tell_changed()
        if not versions:
            self.by_name.pop(name, None)
            return
        main = self.by_name.get(name)
        self.by_name[name] = max(versions, key=lambda each: (len(each.replicas.ready), each is main))
