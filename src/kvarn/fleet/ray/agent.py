"""The process that speaks to Ray for a gateway: `python -m kvarn.fleet.ray.agent CHANNEL`.

Ray ends a process that has not reached the cluster's head for a minute, and the gateway has to go on serving without
it: so it is this one that ends. The gateway starts it again; engines are actors that need neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from typing import Any

import msgspec
import ray
from ray._private.state import state as cluster_state  # drains of nodes are told nowhere else
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayActorError, RayError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from kvarn.clock import SYSTEM_CLOCK
from kvarn.fleet.channel import Channel, Handlers
from kvarn.fleet.ray.actor import EngineActor
from kvarn.fleet.ray.messages import Announced, Ended, Host, Launch, Launched, ListPlaces, Place, StopEngine
from kvarn.replica.server.parent import exit_with_parent

_WAIT_S = 20.0
_ASK_S = 10.0
_START_S = 60.0
"""Limit for the start of an engine's actor after a place was found, which takes long on a busy machine."""
_RETRY_S = 1.0
_DRAINS_S = 2.0
"""Seconds between two looks for nodes that Ray drains."""
_NO_DEADLINE_S = 3600.0

_log = logging.getLogger(__name__)


class Agent:
    """Carries out what the gateway asks for. Engines are named actors, each in a placement group of its name."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._prefix = f"kvarn/{namespace}/"
        self._channel: Channel | None = None
        self._followed: dict[str, asyncio.Task[None]] = {}
        self._killed: set[str] = set()
        self._nodes: dict[str, str] = {}  # Ray's id of each engine's machine
        self._announced: set[str] = set()

    async def run(self, end: socket.socket) -> None:
        await asyncio.to_thread(self._sweep)
        handlers: Handlers = {Host: self._host, Launch: self._launch, ListPlaces: self._list, StopEngine: self._kill}
        self._channel = await Channel.open(end, handlers)
        looking = asyncio.create_task(self._look_for_drains(self._channel))
        await self._channel.closed.wait()
        looking.cancel()

    async def _look_for_drains(self, channel: Channel) -> None:
        is_away = False
        while True:
            try:
                self._announce(channel, await asyncio.to_thread(cluster_state.get_draining_nodes))
                is_away = False
            except Exception as error:  # the cluster's head is away, or Ray has changed what is private to it
                if not is_away:
                    _log.warning("drains of nodes are not noticed meanwhile: %s", error)
                is_away = True
            await asyncio.sleep(_DRAINS_S)

    def _announce(self, channel: Channel, deadlines_ms: dict[str, int]) -> None:
        """Tell of the engines on nodes that are drained, once each."""
        for name, node in self._nodes.items():
            if node in deadlines_ms and name not in self._announced:
                self._announced.add(name)
                deadline_s = deadlines_ms[node] / 1000
                left_s = max(0.0, deadline_s - SYSTEM_CLOCK.time()) if deadline_s else _NO_DEADLINE_S
                channel.send(Announced(name, left_s))

    def _host(self, _: Host) -> str:
        return str(ray.util.get_node_ip_address())

    async def _launch(self, request: Launch) -> Launched:
        try:
            launched = await asyncio.to_thread(self._place, request)
        except (RayError, ValueError, GetTimeoutError) as error:
            await asyncio.to_thread(self._remove, request.name)
            launched = Launched(problem=f"Ray: {error}")
        if launched.place is not None:
            self._nodes[request.name] = launched.place.node
            self._follow(request.name)
        return launched

    def _place(self, request: Launch) -> Launched:
        needs = request.needs
        # Ray gives shares of one GPU, or whole ones.
        gpus = needs.gpu_share if needs.gpus == 1 else float(needs.gpus)
        wanted = {"CPU": needs.cpus, "GPU": gpus, "memory": needs.memory_bytes}
        bundle = {name: amount for name, amount in wanted.items() if amount}
        group = placement_group([bundle], strategy="STRICT_PACK", name=self._prefix + request.name, lifetime="detached")
        if not group.wait(request.timeout_s) or request.name in self._killed:
            remove_placement_group(group)
            free = {name: ray.available_resources().get(name, 0) for name in bundle}
            return Launched(problem=f"no machine has room for {_text(bundle)}; free in all: {_text(free)}")
        options: dict[str, Any] = {
            "name": request.name,
            "namespace": self._namespace,
            "lifetime": "detached",
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": 8,
            "num_cpus": needs.cpus,
            "num_gpus": gpus,
            "memory": needs.memory_bytes,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0),
        }
        actor = ray.remote(EngineActor).options(**options).remote(request.spec)
        place = msgspec.json.decode(
            ray.get(actor.describe.remote(), timeout=max(request.timeout_s, _START_S)), type=Place
        )
        if request.name in self._killed:
            self._remove(request.name)
            return Launched(problem="it was given up meanwhile")
        return Launched(place)

    async def _list(self, _: ListPlaces) -> dict[str, Place]:
        places = await asyncio.to_thread(self._places)
        for name, place in places.items():
            self._nodes[name] = place.node
            self._follow(name)
        return places

    def _places(self) -> dict[str, Place]:
        places = {}
        for name in ray.util.list_named_actors():
            with contextlib.suppress(ValueError, RayActorError, GetTimeoutError):
                actor = ray.get_actor(name, self._namespace)
                places[name] = msgspec.json.decode(ray.get(actor.describe.remote(), timeout=_ASK_S), type=Place)
        return places

    def _kill(self, kill: StopEngine) -> None:
        name = kill.name
        self._killed.add(name)
        self._follow(name)
        task = asyncio.ensure_future(asyncio.to_thread(self._remove, name))
        task.add_done_callback(lambda done: done.exception())

    def _remove(self, name: str) -> None:
        with contextlib.suppress(ValueError):  # there is none
            ray.kill(ray.get_actor(name, self._namespace), no_restart=True)
        self._sweep(only=name)

    def _sweep(self, only: str | None = None) -> None:
        """Give back the places of all engines that are gone, or of one engine."""
        living = set(ray.util.list_named_actors()) - {only}
        for group_id, group in placement_group_table().items():
            name = group["name"].removeprefix(self._prefix)
            is_ours = group["name"].startswith(self._prefix) and (only is None or name == only)
            if is_ours and group["state"] != "REMOVED" and name not in living:
                remove_placement_group(_group(group_id))

    def _follow(self, name: str) -> None:
        if name not in self._followed:
            self._followed[name] = asyncio.create_task(self._wait(name))

    async def _wait(self, name: str) -> None:
        while True:
            try:
                actor = await asyncio.to_thread(ray.get_actor, name, self._namespace)
                ended, reason = await actor.wait.remote(_WAIT_S)
            except ActorUnavailableError:
                await asyncio.sleep(_RETRY_S)  # its machine does not answer; Ray finds out whether it is lost
                continue
            except ActorDiedError as error:
                ended, reason = True, f"Ray lost it: {str(error).splitlines()[0]}"
            except ValueError:
                ended, reason = True, "no such engine runs"
            if ended:
                break
        await asyncio.to_thread(self._remove, name)
        assert self._channel is not None
        self._channel.send(Ended(name, reason))
        del self._followed[name]
        self._nodes.pop(name, None)
        self._announced.discard(name)


def _group(group_id: str) -> Any:
    from ray._raylet import PlacementGroupID
    from ray.util.placement_group import PlacementGroup

    return PlacementGroup(PlacementGroupID(bytes.fromhex(group_id)))


def _text(resources: dict[str, float]) -> str:
    def amount(name: str, value: float) -> str:
        return f"{value / 1024**3:.1f} GiB" if name == "memory" else f"{value:g} {name}"

    return ", ".join(amount(name, value) for name, value in resources.items())


def main(arguments: list[str]) -> None:
    exit_with_parent()
    channel, address, namespace = arguments
    ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR)
    asyncio.run(Agent(namespace).run(socket.socket(fileno=int(channel))))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
