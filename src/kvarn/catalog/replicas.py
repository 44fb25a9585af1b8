"""The replicas of one model: they come and go while requests are answered, and one is chosen for each request."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kvarn.clock import SYSTEM_CLOCK, Clock
from kvarn.config.engine import EngineConfig
from kvarn.config.replica import RoutingConfig
from kvarn.replica.client.protocol import ReplicaClient, ReplicaState, ReplicaStatus
from kvarn.replica.client.zmq_client import ZmqReplicaClient
from kvarn.routing.candidate import RouteRequest
from kvarn.routing.index import block_names
from kvarn.routing.router import ReplicaChoice, Router
from kvarn.wire.block_names import PrefixScope, root_hash
from kvarn.wire.messages import AdapterInfo, Submit

_LIFE = (ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.STARTING, ReplicaState.DOWN)


class ReplicaSet(Mapping[str, ReplicaClient]):
    """By name: the machine's and the model's, and a number where there are several. `routing`: how one is chosen; None:
    it is chosen elsewhere. `adapters`: of the model, as long as no replica has told of its own. `seed`: of the router's
    chance."""

    def __init__(
        self,
        clients: Mapping[str, ReplicaClient] | None = None,
        gateway: int = 0,
        routing: RoutingConfig | None = None,
        engine: EngineConfig | None = None,
        adapters: Iterable[AdapterInfo] = (),
        clock: Clock = SYSTEM_CLOCK,
        seed: int | None = None,
    ) -> None:
        self.clock = clock
        self._seed = seed
        self._routing = routing
        self._engine = engine
        self._clients: dict[str, ReplicaClient] = {}
        self._gateway = gateway
        self._adapters = {each.name: each for each in adapters}
        self._changed = asyncio.Event()
        self.router: Router | None = None
        """None while there is nothing to choose among."""
        for name, client in (clients or {}).items():
            self.add(name, client)

    def __getitem__(self, name: str) -> ReplicaClient:
        return self._clients[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._clients))

    def __len__(self) -> int:
        return len(self._clients)

    def add(self, name: str, client: ReplicaClient) -> None:
        self._clients[name] = client
        client.on_changed = self.tell_changed
        self._count_changed()

    def remove(self, name: str) -> ReplicaClient | None:
        """A replica is gone for good; requests that it still answers are not this set's matter."""
        client = self._clients.pop(name, None)
        if client is not None and not self._clients:
            self._adapters = client.adapters
        if client is not None and self.router is not None:
            client.watch_blocks(None)
            self.router.remove(name)
        self._count_changed()
        return client

    def update(self, status: ReplicaStatus) -> None:
        """Take over what a supervisor says of an engine process; a new name is a new replica."""
        client = self._clients.get(status.replica)
        if status.state is ReplicaState.GONE:
            self.remove(status.replica)
            if isinstance(client, ZmqReplicaClient):
                client.close()
            return
        if client is None:
            client = ZmqReplicaClient(status.model, self._gateway)
            client.adapters = dict(self.adapters)  # until its engine tells
            self.add(status.replica, client)
        assert isinstance(client, ZmqReplicaClient), "only engine processes have supervisors"
        if client.state is not ReplicaState.READY:
            self._tell_adapters(client)
        client.update(status)

    def _tell_adapters(self, client: ZmqReplicaClient) -> None:
        """Have a replica that is back load what was loaded while it was away."""
        others = [each for each in self._clients.values() if isinstance(each, ZmqReplicaClient)]
        newest = max(others, key=lambda each: each.adapters_revision)
        if newest.adapters_revision > client.adapters_revision:
            client.know_adapters_of(newest)

    def close(self) -> None:
        """Leave all engines; requests in flight fail."""
        for client in self._clients.values():
            if isinstance(client, ZmqReplicaClient):
                client.close()

    @property
    def most_ready(self) -> ReplicaClient | None:
        """The replica that is furthest in its life: what is said of the model while none, or any, is ready."""
        return min(self._clients.values(), key=lambda each: _LIFE.index(each.state), default=None)

    @property
    def adapters(self) -> Mapping[str, AdapterInfo]:
        """The adapters that requests may name; while there is no replica, those that the last one had."""
        found = self.most_ready
        return self._adapters if found is None else found.adapters

    def ready_clients(self) -> list[ReplicaClient]:
        return [each for each in self._clients.values() if each.state is ReplicaState.READY]

    @property
    def ready(self) -> list[str]:
        return [name for name, each in self._clients.items() if each.state is ReplicaState.READY]

    def changed(self) -> Coroutine[Any, Any, object]:
        """Await that a replica comes or goes, or takes other requests than when this is called: its state, adapters."""
        return self._changed.wait()

    def tell_changed(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # Choosing --------------------------------------------------------------------------------------------------------

    @property
    def reads_names(self) -> bool:
        """Whether a choice needs names of the prompt's blocks."""
        return self.router is not None and self.router.reads_names

    def names(self, prompt: Sequence[int], tenant: str, salt: str, adapter: str = "") -> bytes:
        """Names of a prompt's blocks for a `RouteRequest`. `adapter` is its name."""
        found = self.most_ready
        if found is None:
            return b""
        digest = found.adapters[adapter].digest if adapter in found.adapters else adapter
        namespace = "" if found.card is None else found.card.cache_namespace
        return block_names(root_hash(PrefixScope(tenant, salt, digest), namespace), list(prompt))

    def choose(self, request: RouteRequest) -> ReplicaChoice | None:
        """The replica that a request goes to, whose load it is from now on; None where none takes it."""
        router = self.router
        if router is None:
            ready = [name for name in self.ready if name not in {*request.excluded, *request.refusing}]
            return ReplicaChoice(ready[0]) if ready else None
        now = self.clock.now()
        for name, candidate in router.candidates.items():
            client = self._clients[name]
            candidate.available = client.state is ReplicaState.READY
            candidate.adapters = client.adapters
            if (stats := client.stats) is not candidate.stats:
                candidate.update(stats, now)
        return router.choose(request, now)

    def choose_or_draining(self, request: RouteRequest) -> ReplicaChoice | None:
        """Choose for a request that was on its way when the last replica began to drain: that one still takes it."""
        choice = self.choose(request)
        if choice is not None:
            return choice
        draining = [name for name, each in self._clients.items() if each.state is ReplicaState.DRAINING]
        return ReplicaChoice(draining[0]) if draining else None

    def route_of(self, submit: Submit) -> RouteRequest:
        """The router's question for a request that is to be sent."""
        prompt, names = submit.prompt_token_ids, b""
        if self.reads_names:
            names = self.names(prompt, submit.tenant, submit.cache_salt, submit.adapter)
        return RouteRequest(len(prompt), names, adapter=submit.adapter, sequences=submit.sampling.n)

    def _count_changed(self) -> None:
        """Have replicas tell of their caches as long as there are several."""
        if len(self._clients) > 1 and self._routing is not None:
            self.router = self.router or Router(self._routing.policy, self._seed)
            for name, client in self._clients.items():
                if name not in self.router.candidates:
                    client.watch_blocks(self.router.add(name, self._engine))
        elif self.router is not None:
            self.router = None
            for client in self._clients.values():
                client.watch_blocks(None)
        self.tell_changed()
