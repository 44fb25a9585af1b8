"""Loading and unloading adapters while the server runs: which model, from which directories, under which names."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from kvarn.config.schema import KvarnConfig
from kvarn.replica.client.protocol import AdapterChangeError, ReplicaClient, ReplicaLostError
from kvarn.serving.context import ServingContext
from kvarn.serving.models import ServedModel
from kvarn.store.ids import new_id
from kvarn.text.checkpoint import PACKAGED_ADAPTERS, packaged_adapter
from kvarn.wire.adapters import LoadAdapterRequest, UnloadAdapterRequest
from kvarn.wire.messages import AdapterInfo
from kvarn.wire.openai.errors import ApiError, invalid_request

_STATUS = {"exists": 400, "missing": 404, "invalid": 400}
_CODES = {"exists": "lora_adapter_exists", "missing": "lora_adapter_not_found", "invalid": "invalid_lora_adapter"}
_log = logging.getLogger("kvarn.gateway")


async def load_adapter(serving: ServingContext, request: LoadAdapterRequest) -> str:
    """Load an adapter; returns what to say.

    Raises:
        ApiError: 400 the request or the adapter cannot be used, 403 the directory is not one to load from.
        ReplicaLostError: The engine is not ready.
    """
    model = _model_of(serving, request.model)
    name = request.lora_name
    for other in serving.models:
        if name in (other.name, *other.config.aliases):
            raise invalid_request(f"{name!r} is the name of a model: choose another.", "lora_name")
        if other is not model and name in other.adapters:
            raise invalid_request(f"{name!r} is an adapter of the model {other.name!r}: choose another.", "lora_name")
    path = await asyncio.to_thread(_directory, request.lora_path, allowed_directories(serving.config, model))
    adapter = AdapterInfo(name=name, path=str(path), organizations=request.organizations, projects=request.projects)
    await _change(model, lambda replica: replica.load_adapter(new_id("lora-"), adapter, in_place=request.load_inplace))
    _log.info("adapter loaded", extra={"adapter": name, "model": model.name, "path": str(path)})
    return f"Success: LoRA adapter '{name}' added successfully."


async def unload_adapter(serving: ServingContext, request: UnloadAdapterRequest) -> str:
    """Unload an adapter; what runs with it goes on. Returns what to say.

    Raises:
        ApiError: 404, there is none of that name.
        ReplicaLostError: The engine is not ready.
    """
    name = request.lora_name
    model = next((model for model in serving.models if name in model.adapters), None)
    if model is None:
        raise ApiError(404, f"The lora adapter {name[:200]!r} cannot be found.", code=_CODES["missing"])
    await _change(model, lambda replica: replica.unload_adapter(new_id("lora-"), name))
    _log.info("adapter unloaded", extra={"adapter": name, "model": model.name})
    return f"Success: LoRA adapter '{name}' removed successfully."


def allowed_directories(config: KvarnConfig, model: ServedModel) -> list[Path]:
    """Where adapters may be loaded from while the server runs."""
    configured = model.config.lora.directories
    return [Path(config.data_dir, "adapters")] if configured is None else list(map(Path, configured))


def _directory(path: str, allowed: Iterable[Path]) -> Path:
    """The directory of an adapter, links resolved. Raises `ApiError` for one that may not be read."""
    if path in PACKAGED_ADAPTERS:
        return packaged_adapter(path)
    directory = Path(path).expanduser().resolve()
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


def _model_of(serving: ServingContext, name: str | None) -> ServedModel:
    if name is not None:
        return serving.models.find(name)
    models = [model for model in serving.models if model.card is None or model.card.kind == "generate"]
    if len(models) != 1:
        known = ", ".join(repr(model.name) for model in models)
        raise invalid_request(f"Say with 'model' which model the adapter is for: {known}.", "model")
    return models[0]


async def _change(model: ServedModel, change: Callable[[ReplicaClient], Awaitable[None]]) -> None:
    """Change the adapters of all replicas that are ready; those that are not hear of it when they are.

    Raises:
        ApiError: The adapter cannot be loaded or unloaded.
        ReplicaLostError: None of them did it.
    """
    ready = [model.replicas[name] for name in model.replicas.ready]
    results = await asyncio.gather(*[change(replica) for replica in ready], return_exceptions=True)
    lost = [each for each in results if isinstance(each, ReplicaLostError)]
    for error in results:
        if isinstance(error, AdapterChangeError):
            raise ApiError(_STATUS[error.code], str(error), code=_CODES[error.code])
        if isinstance(error, BaseException) and error not in lost:
            raise error
    if len(lost) == len(ready):
        raise lost[0] if lost else ReplicaLostError(f"{model.name} is not ready")
