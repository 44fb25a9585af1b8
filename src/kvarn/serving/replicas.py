"""The replicas of one model: they come and go while requests are answered."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from kvarn.replica.client.protocol import ReplicaClient, ReplicaState, ReplicaStatus
from kvarn.replica.client.zmq_client import ZmqReplicaClient
from kvarn.routing.round_robin import next_ready

_LIFE = (ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.STARTING, ReplicaState.DOWN)


class ReplicaSet(Mapping[str, ReplicaClient]):
    """By name: the machine's and the model's, and a number where there are several.

    Args:
        clients: Those that are there from the start.
        gateway: Number of this gateway process, whom engines answer.
    """

    def __init__(self, clients: Mapping[str, ReplicaClient] | None = None, gateway: int = 0) -> None:
        self._clients = dict(clients or {})
        self._gateway = gateway
        self._last = -1
        """Position of the replica picked last."""

    def __getitem__(self, name: str) -> ReplicaClient:
        return self._clients[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._clients))

    def __len__(self) -> int:
        return len(self._clients)

    def add(self, name: str, client: ReplicaClient) -> None:
        """One more replica."""
        self._clients[name] = client

    def remove(self, name: str) -> ReplicaClient | None:
        """A replica is gone for good; requests that it still answers are not this set's matter."""
        return self._clients.pop(name, None)

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
            self._clients[status.replica] = client
            known = [each for each in self._clients.values() if isinstance(each, ZmqReplicaClient)]
            client.know_adapters_of(max(known, key=lambda each: each.adapters_revision))
        assert isinstance(client, ZmqReplicaClient), "only engine processes have supervisors"
        client.update(status)

    def close(self) -> None:
        """Leave all engines; requests in flight fail."""
        for client in self._clients.values():
            if isinstance(client, ZmqReplicaClient):
                client.close()

    @property
    def foremost(self) -> ReplicaClient | None:
        """The replica that is furthest in its life: what is said of the model while none, or any, is ready."""
        return min(self._clients.values(), key=lambda each: _LIFE.index(each.state), default=None)

    @property
    def ready(self) -> list[str]:
        """Names of those that take requests."""
        return [name for name, each in self._clients.items() if each.state is ReplicaState.READY]

    def pick(self, excluded: Collection[str] = ()) -> str | None:
        """Name of the replica that answers the next request; None where none takes requests."""
        names = list(self._clients)
        ready = [self._clients[name].state is ReplicaState.READY and name not in excluded for name in names]
        position = next_ready(ready, self._last)
        if position is None:
            return None
        self._last = position
        return names[position]
