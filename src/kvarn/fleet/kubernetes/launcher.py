"""The launcher that starts engine processes as pods of a Kubernetes cluster.

A run is a pod. One loop lists and watches the pods with this server's label; what it sees resolves what others wait
for. While the API server is away, what runs goes on, and only starting replicas has to wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from kvarn.config.kubernetes import KubernetesConfig
from kvarn.config.load import ConfigError
from kvarn.fleet.kubernetes.api import GONE, KubernetesError, PodApi
from kvarn.fleet.kubernetes.followed_pod import EngineInPod, FollowedPod
from kvarn.fleet.kubernetes.manifest import (
    LEAST_KEY_BYTES,
    REPLICA,
    RUN,
    EngineKeys,
    PodArguments,
    pod_manifest,
    pod_name,
    selector,
)
from kvarn.fleet.kubernetes.objects import Pod
from kvarn.fleet.launch.launcher import LaunchedEngine, Launcher, ReportStage
from kvarn.fleet.placement.packing import Needs
from kvarn.fleet.placement.places import LaunchError, Places
from kvarn.replica.endpoint import Endpoint, free_address, tcp_address
from kvarn.replica.spec import ReplicaSpec

_RETRY_S = 1.0
_KILL_GRACE_S = 1
"""Kubernetes' shortest time that still leaves it to the node to say when the process is gone."""

_log = logging.getLogger(__name__)


class KubernetesLauncher(Launcher):
    """Makes, follows and deletes pods. It follows only those that it made or was asked to adopt."""

    on_this_machine = False

    def __init__(self, config: KubernetesConfig, needs_of: Callable[[ReplicaSpec], Needs]) -> None:
        """Raises `ConfigError`."""
        self.places = Places()  # Kubernetes knows the room
        self._config = config
        self._needs_of = needs_of
        self._keys = EngineKeys(_read_key(Path(config.key_file)))
        self._api = PodApi(config)
        self._selector = selector(config)
        self._own: Pod | None = None
        self._followed: dict[str, FollowedPod] = {}
        self._following: asyncio.Task[None] | None = None
        self._deleting: dict[str, asyncio.Task[None]] = {}
        self._is_away = False

    def start(self) -> None:
        if self._following is None:
            self._following = asyncio.create_task(self._follow(), name="follow the pods of engines")

    async def stop(self) -> None:
        tasks = [*self._deleting.values(), *([] if self._following is None else [self._following])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._api.close()

    async def launch(self, spec: ReplicaSpec, run: int, report: ReportStage = lambda stage: None) -> LaunchedEngine:
        name = pod_name(self._config.server, spec.replica, run)
        try:
            host, (image, pull_secrets) = await self._listen_address(), await self._image()
            supervisor = free_address(host)
            remote = msgspec.structs.replace(
                spec,
                endpoint=Endpoint(gateway_host=host),
                supervisor=supervisor,
                orphan_timeout_s=self._config.orphan_timeout_s,
                cpus=(),
                gpus=(),
            )
            told = PodArguments(name=name, port=self._config.engine_port, key_file=self._config.key_file, spec=remote)
            manifest = pod_manifest(self._config, told, run, self._needs_of(spec), image, pull_secrets)
            pod = self._follow_pod(name)
            pod.on_stage = report
            await self._create(pod, manifest)
        except KubernetesError as error:
            raise LaunchError(f"Kubernetes: {error}") from None
        started = await self._until_started(pod)
        _log.info("engine's pod runs", extra={"replica": spec.replica, "run": run, "pod": name})
        return self._engine(started, supervisor, host)

    def give_up(self, replica: str, run: int) -> None:
        pod = self._followed.get(pod_name(self._config.server, replica, run))
        if pod is not None and not pod.started.done():
            pod.started.set_exception(LaunchError("it was given up meanwhile"))

    async def adopt(self, replica: str) -> dict[int, LaunchedEngine]:
        """Without the API server nothing is found. Pods whose process has not begun are deleted: nobody waits for
        them."""
        try:
            pods, host = await self._living(), await self._listen_address()
        except (KubernetesError, LaunchError) as error:
            _log.warning("running engines cannot be taken over: %s", error)
            return {}
        found: dict[int, LaunchedEngine] = {}
        for pod in pods:
            if pod.metadata.annotations[REPLICA] != replica:
                continue
            if pod.runs:
                self._follow_pod(pod.name).seen(pod)
                found[int(pod.metadata.annotations[RUN])] = self._engine(pod, free_address(host), host)
            else:
                self._delete(pod.name)
        return found

    async def replicas(self) -> set[str]:
        """Removes what is left of pods whose process has ended."""
        try:
            return {pod.metadata.annotations[REPLICA] for pod in await self._living(sweep=True)}
        except KubernetesError as error:
            raise LaunchError(f"Kubernetes: {error}") from None

    async def end(self, replica: str) -> None:
        for engine in (await self.adopt(replica)).values():
            engine.kill()

    # Pods ------------------------------------------------------------------------------------------------------------

    async def _create(self, pod: FollowedPod, manifest: dict[str, Any]) -> None:
        try:
            await self._api.create(manifest)
        except KubernetesError:
            pod.kill()  # it may have been made, and the answer was lost
            raise
        pod.exists = True

    async def _until_started(self, pod: FollowedPod) -> Pod:
        try:
            async with asyncio.timeout(self._config.place_timeout_s):
                return await asyncio.shield(pod.started)
        except TimeoutError:
            pod.kill()
            problem = pod.waits_for or "the API server has not told of it"
            raise LaunchError(f"it did not run after {self._config.place_timeout_s:g} s: {problem}") from None
        except LaunchError:
            pod.kill()
            raise

    def _engine(self, pod: Pod, supervisor: str, host: str) -> EngineInPod:
        endpoint = Endpoint(
            engine=tcp_address(pod.status.pod_ip, self._config.engine_port),
            gateway_host=host,
            keys=self._keys.of(pod.name).for_gateway(),
        )
        return EngineInPod(endpoint, supervisor, self._followed[pod.name])

    def _follow_pod(self, name: str) -> FollowedPod:
        pod = self._followed[name] = FollowedPod(name, self._delete)
        pod.started.add_done_callback(lambda done: done.cancelled() or done.exception())
        return pod

    def _delete(self, name: str) -> None:
        if name not in self._deleting:
            task = self._deleting[name] = asyncio.create_task(self._delete_now(name))
            task.add_done_callback(lambda _: self._deleting.pop(name))

    async def _delete_now(self, name: str) -> None:
        level = logging.WARNING
        while True:
            try:
                is_there = await self._api.delete(name, _KILL_GRACE_S)
                break
            except KubernetesError as error:
                _log.log(level, "a pod cannot be deleted, retrying: %s", error, extra={"pod": name})
                level = logging.DEBUG
                await asyncio.sleep(_RETRY_S)
        if not is_there:
            self._gone(name, "its pod is gone")

    async def _living(self, *, sweep: bool = False) -> list[Pod]:
        """This server's pods whose process may run."""
        pods = (await self._api.list(self._selector)).items
        own = [
            pod
            for pod in pods
            if REPLICA in pod.metadata.annotations and pod.metadata.annotations.get(RUN, "").isdecimal()
        ]
        for pod in own:
            if sweep and pod.has_ended and pod.name not in self._followed:
                self._delete(pod.name)
        return [pod for pod in own if not pod.has_ended]

    async def _own_pod(self) -> Pod:
        if self._own is None:
            try:
                self._own = await self._api.get(platform.node())
            except KubernetesError as error:
                why = f"the gateway's own pod cannot be read ({error})"
                raise KubernetesError(f"{why}: set fleet.kubernetes.image and listen_address") from None
        return self._own

    async def _listen_address(self) -> str:
        if self._config.listen_address is not None:
            return self._config.listen_address
        address = (await self._own_pod()).status.pod_ip
        if not address:
            raise LaunchError("the gateway's own pod has no address yet: set fleet.kubernetes.listen_address")
        return address

    async def _image(self) -> tuple[str, list[dict[str, str]]]:
        """The image of the pods, and the secrets with which the gateway's own was pulled."""
        if self._config.image is not None:
            return self._config.image, []
        own = (await self._own_pod()).spec
        return own.containers[0].image, own.image_pull_secrets

    # Following -------------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            try:
                await self._list_and_watch()
            except KubernetesError as error:
                if error.status != GONE:
                    if not self._is_away:
                        _log.error("pods of engines are not followed, retrying: %s", error)
                    self._is_away = True
                    await asyncio.sleep(_RETRY_S)

    async def _list_and_watch(self) -> None:
        known = [pod for pod in self._followed.values() if pod.exists]
        listed = await self._api.list(self._selector)
        self._is_away = False
        present = {pod.name for pod in listed.items}
        for pod in listed.items:
            self._seen(pod)
        for each in known:
            if each.name not in present:
                self._gone(each.name, "its pod is gone")
        version = listed.metadata.resource_version
        while True:
            async with contextlib.aclosing(self._api.watch(self._selector, version)) as events:
                async for event in events:
                    version = event.object.metadata.resource_version
                    if event.type == "DELETED":
                        pod = event.object
                        self._gone(pod.name, pod.end_reason if pod.has_ended else "its pod was deleted")
                    elif event.type != "BOOKMARK":
                        self._seen(event.object)

    def _seen(self, pod: Pod) -> None:
        followed = self._followed.get(pod.name)
        if followed is None:
            return
        followed.seen(pod)
        if pod.has_ended:
            del self._followed[pod.name]
            self._delete(pod.name)

    def _gone(self, name: str, reason: str | None) -> None:
        followed = self._followed.pop(name, None)
        if followed is not None:
            followed.gone(reason)


def _read_key(path: Path) -> bytes:
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        why = f"fleet.kubernetes.key_file: {path} cannot be read ({error.strerror})"
        raise ConfigError(f"{why}; see docs/operate/kubernetes_launcher.md for the secret it comes from") from None
    if len(key) < LEAST_KEY_BYTES:
        raise ConfigError(f"fleet.kubernetes.key_file: {path} has fewer than {LEAST_KEY_BYTES} characters")
    return key
