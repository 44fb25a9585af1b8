"""Loading and unloading adapters while the server runs: which model, from which directories, under which names."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from kvarn.catalog.held_requests import HeldRequests
from kvarn.catalog.model_table import ModelTable
from kvarn.catalog.models import ServedModel
from kvarn.config.schema import KvarnConfig
from kvarn.replica.client.protocol import AdapterChangeError, ReplicaClient, ReplicaLostError, RequestRefusedError
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.ids import new_id
from kvarn.store.repositories.deployments import drop_adapter, keep_adapter, kept_adapters
from kvarn.text.checkpoint import PACKAGED_ADAPTERS, packaged_adapter
from kvarn.text.errors import CheckpointError
from kvarn.text.local_path import local_path
from kvarn.wire.adapters import LoadAdapterRequest, UnloadAdapterRequest
from kvarn.wire.messages import AdapterInfo
from kvarn.wire.openai.errors import ApiError, invalid_request

_STATUS = {"exists": 400, "missing": 404, "invalid": 400}
_CODES = {"exists": "lora_adapter_exists", "missing": "lora_adapter_not_found", "invalid": "invalid_lora_adapter"}
_log = logging.getLogger("kvarn.catalog")


class AdapterLoader:
    """Loads and unloads adapters for administrators; the database keeps which adapters a deployment has."""

    def __init__(self, config: KvarnConfig, models: ModelTable, held_requests: HeldRequests, store: Store) -> None:
        self._config = config
        self._models = models
        self._held_requests = held_requests
        self._store = store

    async def load(self, request: LoadAdapterRequest, by: str) -> str:
        """Load an adapter, which belongs to the model's deployment from then on; returns what to say. A model without
        replicas gets one first. Raises `ApiError` 400 for a request or an adapter that cannot be used, 403 for a
        directory that is not one to load from, 503 before the model is ready."""
        model = self._model_of(request.model)
        name = request.lora_name
        for other in self._models:
            if name in (other.name, *other.config.aliases):
                raise invalid_request(f"{name!r} is the name of a model: choose another.", "lora_name")
            if other is not model and name in other.adapters:
                raise invalid_request(
                    f"{name!r} is an adapter of the model {other.name!r}: choose another.", "lora_name"
                )
        path = await asyncio.to_thread(_directory, request.lora_path, allowed_directories(self._config, model))
        adapter = AdapterInfo(name=name, path=str(path), organizations=request.organizations, projects=request.projects)
        await self._held_requests.until_ready(lambda: (self._models.choose_version(model.name), ""))
        await _load(model, adapter, in_place=request.load_inplace)
        try:
            loaded = msgspec.structs.replace(model.adapters.get(name, adapter), kept=True)
            await keep_adapter(self._store, model.name, msgspec.to_builtins(loaded), by)
        except StoreAwayError:
            if not request.load_inplace:  # or the one before it would be gone
                await _unload(model, name)
            raise
        _log.info("adapter loaded", extra={"adapter": name, "model": model.name, "path": str(path)})
        return f"Success: LoRA adapter '{name}' added successfully."

    async def unload(self, request: UnloadAdapterRequest) -> str:
        """Unload an adapter; what runs with it goes on. Returns what to say. Raises `ApiError` 404 and 503."""
        name = request.lora_name
        model = next((model for model in self._models if name in model.adapters), None)
        if model is None:
            raise ApiError(404, f"The lora adapter {name[:200]!r} cannot be found.", code=_CODES["missing"])
        await self._held_requests.until_ready(lambda: (self._models.choose_version(model.name), ""))
        await drop_adapter(self._store, model.name, name)
        await _unload(model, name)
        _log.info("adapter unloaded", extra={"adapter": name, "model": model.name})
        return f"Success: LoRA adapter '{name}' removed successfully."

    def _model_of(self, name: str | None) -> ServedModel:
        if name is not None:
            return self._models.find(name)
        models = [model for model in self._models if model.card is None or model.card.kind == "generate"]
        if len(models) != 1:
            known = ", ".join(repr(model.name) for model in models)
            raise invalid_request(f"Say with 'model' which model the adapter is for: {known}.", "model")
        return models[0]


def allowed_directories(config: KvarnConfig, model: ServedModel) -> list[Path]:
    configured = model.config.lora.directories
    return [Path(config.data_dir, "adapters")] if configured is None else list(map(Path, configured))


def _directory(path: str, allowed: Iterable[Path]) -> Path:
    """The directory of an adapter, links resolved. Raises `ApiError` for one that may not be read."""
    if path in PACKAGED_ADAPTERS:
        return packaged_adapter(path)
    try:
        directory = local_path(path).resolve()
    except (CheckpointError, RuntimeError, OSError) as error:  # links that lead to themselves, a name that is too long
        raise invalid_request(f"{path[:400]!a} cannot be read: {error}", "lora_path") from None
    roots = [root.expanduser().resolve() for root in allowed]
    if not any(directory.is_relative_to(root) for root in roots):
        raise ApiError(
            403,
            f"{path[:400]!r} is not below a directory from which adapters may be loaded: "
            f"{', '.join(map(str, roots)) or 'there is none'}. Move it there, or add its directory to "
            "lora.directories (--lora-directories).",
            param="lora_path",
            code="lora_path_not_allowed",
        )
    return directory


async def _load(model: ServedModel, adapter: AdapterInfo, *, in_place: bool) -> None:
    """Have all replicas of all versions load it. A version that is not this one may have its own of that name."""
    changes = [
        replica.load_adapter(new_id("lora-"), adapter, in_place=in_place or version is not model)
        for version, replica in _ready(model)
    ]
    await _all(model, changes)


async def _unload(model: ServedModel, name: str) -> None:
    await _all(model, [_unload_from(each, name) for version, each in _ready(model) if name in version.adapters])


async def _unload_from(replica: ReplicaClient, name: str) -> None:
    with suppress(AdapterChangeError):  # it is gone: the keeper, or another request, was faster
        await replica.unload_adapter(new_id("lora-"), name)


def _ready(model: ServedModel) -> list[tuple[ServedModel, ReplicaClient]]:
    return [(each, each.replicas[name]) for each in model.all_versions for name in each.replicas.ready]


async def _all(model: ServedModel, changes: Sequence[Awaitable[None]]) -> None:
    """Change the adapters of all replicas that are ready; those that are not hear of it when they are. Raises
    `ApiError`, and `ReplicaLostError` where none of them did it."""
    results = await asyncio.gather(*changes, return_exceptions=True)
    lost = [each for each in results if isinstance(each, ReplicaLostError)]
    for error in results:
        if isinstance(error, AdapterChangeError):
            raise ApiError(_STATUS[error.code], str(error), code=_CODES[error.code])
        if isinstance(error, BaseException) and error not in lost:
            raise error
    if len(lost) == len(changes):
        raise lost[0] if lost else ReplicaLostError(f"{model.name} is not ready")


class AdapterReconciler:
    """Gives replicas the adapters of their deployment: one that was starting while an adapter was loaded or unloaded
    lacks it, has it in an older form, or still has it."""

    def __init__(self, models: ModelTable, store: Store) -> None:
        self._models = models
        self._store = store
        self._tried: set[tuple[str, int, str, str]] = set()
        """Replica, its start, adapter and digest: what could not be loaded is not tried again and again."""

    async def look(self) -> None:
        for model in self._models:
            ready = _ready(model)
            any_kept = any(each.kept for _, replica in ready for each in replica.adapters.values())
            if len(model.all_versions) < 2 and not any_kept:  # replicas of one version tell each other what is loaded
                continue
            kept = [msgspec.convert(each, AdapterInfo) for each in await kept_adapters(self._store, model.name)]
            listed = {each.name for each in kept}
            for version, replica in ready:
                for adapter in kept:
                    await self._give(version, replica, adapter)
                for name in [each.name for each in replica.adapters.values() if each.kept and each.name not in listed]:
                    await self._take_away(version, replica, name)

    async def _take_away(self, version: ServedModel, replica: ReplicaClient, adapter: str) -> None:
        extra = {"adapter": adapter, "replica": _name_of(version, replica)}
        try:
            await _unload_from(replica, adapter)
        except (ReplicaLostError, RequestRefusedError) as error:
            _log.warning("an adapter that was unloaded is still there: %s", error, extra=extra)
        else:
            _log.info("an adapter that was unloaded while its replica started is unloaded there", extra=extra)

    async def _give(self, version: ServedModel, replica: ReplicaClient, adapter: AdapterInfo) -> None:
        name = _name_of(version, replica)
        attempt = name, replica.starts, adapter.name, adapter.digest
        had = replica.adapters.get(adapter.name)
        if (had is not None and had.digest == adapter.digest) or attempt in self._tried:
            return
        self._tried.add(attempt)
        try:
            await replica.load_adapter(new_id("lora-"), adapter, in_place=True)
        except (AdapterChangeError, ReplicaLostError, RequestRefusedError) as error:
            _log.warning("an adapter is missing: %s", error, extra={"adapter": adapter.name, "replica": name})


def _name_of(version: ServedModel, replica: ReplicaClient) -> str:
    return next((name for name, each in version.replicas.items() if each is replica), "")
