"""The engine processes of one server: one for each replica of its configuration's models."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kvarn.config.kv_tiers import KVTiersConfig
from kvarn.config.model import ModelConfig
from kvarn.config.schema import KvarnConfig
from kvarn.config.speculation import SpeculationConfig
from kvarn.fleet.checkpoints import Checkpoints, VersionChangedError, check_binding, find_checkpoints
from kvarn.fleet.desired import Desired, DesiredModels
from kvarn.fleet.kubernetes.launcher import KubernetesLauncher
from kvarn.fleet.launch.engine_process import EngineProcess
from kvarn.fleet.launch.launcher import Launcher
from kvarn.fleet.launch.local import LocalLauncher, PreloadedProcess
from kvarn.fleet.placement.cpu_affinity import separate_cpus, share_cpus
from kvarn.fleet.placement.gpus import ranks_on_gpus
from kvarn.fleet.placement.packing import Needs, main_memory, needs_of
from kvarn.fleet.placement.places import Places, places_of_this_machine
from kvarn.fleet.ray.launcher import RayLauncher
from kvarn.fleet.supervision.lifecycle import LEAVING
from kvarn.fleet.supervision.supervisor import EngineSupervisor
from kvarn.replica.addresses import make_socket_directory, remove_socket_directory
from kvarn.replica.server.cpu import pin_to_cpus
from kvarn.replica.spec import ReplicaSpec, replica_name, replica_names
from kvarn.wire.messages import AdapterInfo

log = logging.getLogger(__name__)


class Engines:
    """The engines of this server by their supervisors; those of this machine die with this process. Finds the models'
    checkpoints and launches an engine for each replica, the first in a `process` that was spawned ahead, unless another
    launcher does that later. Where there are CPUs to spare, the engines get some and this process the others; replicas
    of a model share its CPUs among them. Raises `TextError`."""

    def __init__(
        self, config: KvarnConfig, process: EngineProcess | None = None, desired: DesiredModels | None = None
    ) -> None:
        desired = desired or {model.name: Desired(model) for model in config.models}
        self.supervisors: dict[str, EngineSupervisor] = {}
        self.out_of_service: set[str] = set()
        """Replicas that end now for their answers. They keep their places: nothing replaces or drains them."""
        self._config = config
        self._prefills: list[EngineSupervisor] = []  # supervisors of the prefill engines
        self._sockets: list[Path] = []  # socket directories of the prefill engines
        models = [model for model in config.models if model.external is None]
        found = {model.name: find_checkpoints(model) for model in models}
        self.directories = {name: each.directory for name, each in found.items()}
        is_local = config.fleet.launcher == "local"
        self.places = places_of_this_machine() if is_local else Places()
        self.preloaded_process = PreloadedProcess()
        max_threads = max([model.threads or 0 for model in models], default=0)
        gateways = config.gateway.api_server_count
        affinity = separate_cpus(max_threads, gateways=gateways) if config.replica.separate_cores and is_local else None
        self._cpus = affinity.engines if affinity else ()
        """CPUs of the engines; empty: any."""
        try:
            for model in models if is_local else ():
                version, count = desired[model.name].version, desired[model.name].count
                spec = self.replica_spec(found[model.name], version, desired[model.name].adapters)
                try:
                    check_binding(desired[model.name].fingerprints, found[model.name])
                except VersionChangedError as error:
                    log.error("replicas of %r are not started: %s", model.name, error)
                    count = 0
                if model.disaggregation is not None:
                    spec = self._with_prefill(spec, model, config)
                shares = share_cpus(self._cpus, count)
                for replica, cpus in zip(_names(model.name, version, count), shares, strict=True):
                    named = msgspec.structs.replace(spec, replica=replica, cpus=cpus)
                    named = self.places.occupy(named, anyway=True)
                    supervisor = self.supervisors[replica] = EngineSupervisor(
                        named, config.replica, LocalLauncher(preloaded=self.preloaded_process)
                    )
                    supervisor.launch(process)
                    process = None
            for prefill in self._prefills:
                prefill.launch()
        except BaseException:
            self.kill()
            raise
        finally:
            if process is not None:  # other servers run all models
                process.close()
        pin_to_cpus(affinity.gateway if affinity else ())

    def replica_spec(self, found: Checkpoints, version: int, adapters: Sequence[AdapterInfo] = ()) -> ReplicaSpec:
        """The spec of a version's engines; `adapters` were loaded at run time."""
        config = self._config
        return ReplicaSpec(
            model=found.model.model_dump_json(exclude_unset=True),
            version=version,
            directory=str(found.directory),
            adapters=list(adapters),
            draft_directory=str(found.draft_directory or ""),
            heartbeat_interval_s=config.replica.heartbeat_interval_s,
            log_level=config.log_level,
            log_format=config.log_format,
            cpus=self._cpus,
        )

    def start(self) -> None:
        for supervisor in (*self.supervisors.values(), *self._prefills):
            supervisor.start()

    async def stop(self) -> None:
        """End those of this machine now; others go on."""
        is_local = self._config.fleet.launcher == "local"
        supervisors = [*self.supervisors.values(), *self._prefills]
        await asyncio.gather(*[each.stop() if is_local else each.leave() for each in supervisors])
        self.preloaded_process.close()

    async def take_out_of_service(self, replica: str, *, restart: bool) -> None:
        """End a replica that answers wrongly at once, and start it again if `restart`; its requests move to others."""
        supervisor = self.supervisors.get(replica)
        if supervisor is None or supervisor.lifecycle.state in LEAVING:
            return  # it ends anyway
        self.out_of_service.add(replica)
        try:
            await (supervisor.restart(timeout_s=0) if restart else supervisor.drain(timeout_s=0))
        finally:
            self.out_of_service.discard(replica)

    def kill(self) -> None:
        """End them where no event loop supervises them. Idempotent."""
        for supervisor in (*self.supervisors.values(), *self._prefills):
            supervisor.kill()
        self.preloaded_process.close()
        for directory in self._sockets:
            remove_socket_directory(directory)

    def _with_prefill(self, spec: ReplicaSpec, model: ModelConfig, config: KvarnConfig) -> ReplicaSpec:
        """The spec of a model's decode engine; makes the supervisor of its prefill engine."""
        directory = make_socket_directory()
        self._sockets.append(directory)
        second = prefill_spec(spec, model, str(directory / "prefill"))
        second = self.places.occupy(second, anyway=True)
        self._prefills.append(EngineSupervisor(second, config.replica))
        return msgspec.structs.replace(spec, role="decode", prefill_socket=second.prefill_socket)


def _names(model: str, version: int, count: int) -> list[str]:
    if version:
        return [replica_name(model, version, each, on_this_machine=True) for each in range(count)]
    return replica_names(model, count)


def prefill_spec(spec: ReplicaSpec, model: ModelConfig, path: str) -> ReplicaSpec:
    """The spec of the engine that computes prompts for a model's first one: it guesses nothing and keeps nothing on
    disk."""
    assert model.disaggregation is not None, "only a model with a second engine has a spec of it"
    tiers = (model.kv_tiers or KVTiersConfig()).model_copy(update={"disk_gib": 0.0, "directory": None})
    threads = model.disaggregation.prefill_threads or model.threads
    changes = {"kv_tiers": tiers, "threads": threads, "speculation": SpeculationConfig(method="none")}
    config = model.model_copy(update=changes)
    name = f"{replica_names(model.name, 1)[0]} (prefill)"
    changes_of_spec = {
        "model": config.model_dump_json(exclude_unset=True),
        "replica": name,
        "role": "prefill",
        "prefill_socket": path,
    }
    return msgspec.structs.replace(spec, **changes_of_spec)


def launcher_of(config: KvarnConfig, engines: Engines) -> Launcher:
    if config.fleet.launcher == "local":
        return LocalLauncher(engines.places, engines.preloaded_process)

    def needs(spec: ReplicaSpec) -> Needs:
        model = spec.model_config
        return needs_of(model, Path(spec.directory), main_memory(), ranks_on_gpus(model, ()))

    if config.fleet.launcher == "kubernetes":
        return KubernetesLauncher(config.fleet.kubernetes, needs)
    return RayLauncher(config.fleet.ray, needs)
