"""`/console/api/models`: models, their replicas and adapters, and how golden prompts are answered, as they change.

Deployments, versions and rollouts have routes of their own, below `/v1`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from fastapi import Request
from msgspec import Struct
from starlette.responses import Response

from kvarn.catalog.models import ServedModel
from kvarn.gateway.console.router import console_router
from kvarn.gateway.console.streams import console_stream
from kvarn.gateway.console.viewer import ConsoleViewer
from kvarn.gateway.dependencies import GatewayDep
from kvarn.gateway.state import Gateway
from kvarn.identity.scopes import may_see_adapter, may_use_adapter, may_use_model
from kvarn.quality.monitor import QualityMonitor
from kvarn.replica.client.protocol import ReplicaClient, ReplicaState
from kvarn.store.owner import Principal
from kvarn.wire.sse import named_event

router = console_router()

_LOOK_S = 1.0


class GoldenResults(Struct, frozen=True, kw_only=True):
    """Answers of a replica to golden prompts, as this gateway process saw them."""

    passed_at: float | None
    """UNIX seconds of the last probe without a deviation."""
    equal: int
    drifted: int
    unanswered: int
    problem: str | None
    """The deviation; null: it passed the latest probe, or was not probed yet."""
    action: str | None
    """`restart`, `keep_out` or `alert`."""


class ReplicaRow(Struct, frozen=True, kw_only=True):
    name: str
    version: int
    fingerprint: str
    """The checkpoint's, of its version; empty: not known yet."""
    state: str
    stage: str | None
    """Stage of the start; while down, why. Null while it takes requests."""
    progress: float | None
    starts: int
    running: int
    waiting: int
    kv_blocks: int
    kv_blocks_free: int
    step_s: float | None
    kernels: str | None
    dtype: str | None
    golden: GoldenResults | None
    """Null: no golden prompts are asked here."""


class AdapterRow(Struct, frozen=True, kw_only=True):
    name: str
    path: str
    rank: int
    bytes: int
    loaded_at: int | None
    """Null: it came with the configuration."""


class RolloutState(Struct, frozen=True, kw_only=True):
    candidate: str
    phase: str
    paused: bool
    share: float
    answered: int


class ModelDetail(Struct, frozen=True, kw_only=True):
    name: str
    aliases: list[str]
    path: str
    version: int
    """Number of the version that serves; 0: the configuration's."""
    fingerprint: str
    """The checkpoint's, as requests and evaluations name it; empty: it is not read yet, or another server has it."""
    kind: str | None
    max_context_length: int | None
    state: str
    ready: bool
    error: str | None
    external: bool
    """Another server runs it."""
    autoscaled: bool
    replicas: list[ReplicaRow]
    """Those of all versions."""
    adapters: list[AdapterRow]
    rollout: RolloutState | None
    """The latest; only administrators of the platform see it."""


class ModelsView(Struct, frozen=True):
    models: list[ModelDetail]


@router.get("/models")
async def get_models(gateway: GatewayDep, viewer: ConsoleViewer) -> ModelsView:
    """The models and adapters that the viewer may use, as this gateway process knows them."""
    return _view(gateway, viewer.principal, viewer.is_platform_admin)


@router.get("/models/stream")
async def watch_models(request: Request, gateway: GatewayDep, viewer: ConsoleViewer) -> Response:
    """Events `models`: the same as a whole, when something has changed, at most once a second."""
    return console_stream(request, _events(gateway, viewer.principal, viewer.is_platform_admin))


async def _events(gateway: Gateway, principal: Principal, is_platform_admin: bool) -> AsyncGenerator[bytes, None]:
    told = None
    while True:
        view = _view(gateway, principal, is_platform_admin)
        if view != told:
            told = view
            yield named_event("models", view)
        await asyncio.sleep(_LOOK_S)


def _view(gateway: Gateway, principal: Principal, is_platform_admin: bool) -> ModelsView:
    visible = [model for model in gateway.models if may_use_model(principal, model.name)]
    return ModelsView([_model(gateway, principal, model, is_platform_admin) for model in visible])


def _model(gateway: Gateway, principal: Principal, model: ServedModel, is_platform_admin: bool) -> ModelDetail:
    monitor = gateway.control.monitor
    replicas = [
        _replica(version, name, client, monitor)
        for version in model.all_versions
        for name, client in version.replicas.items()
    ]
    adapters = [
        AdapterRow(name=each.name, path=each.path, rank=each.rank, bytes=each.nbytes, loaded_at=each.loaded_at or None)
        for each in model.adapters.values()
        if may_see_adapter(principal, each) and may_use_adapter(principal, each.name)
    ]
    card = model.card
    return ModelDetail(
        name=model.name,
        aliases=list(model.config.aliases),
        path=model.config.path,
        version=model.version,
        fingerprint="" if model.text is None else model.text.version,
        kind=None if card is None else card.kind,
        max_context_length=None if card is None else card.max_context_length,
        state=model.state_text if replicas else "asleep",
        ready=model.ready,
        error=model.load_error,
        external=model.config.external is not None,
        autoscaled=model.config.autoscale is not None,
        replicas=replicas,
        adapters=adapters,
        rollout=_rollout(gateway, model.name) if is_platform_admin else None,
    )


def _replica(version: ServedModel, name: str, client: ReplicaClient, monitor: QualityMonitor | None) -> ReplicaRow:
    stats, card, is_ready = client.stats, client.card, client.state is ReplicaState.READY
    blocks = stats.kv_blocks_total or (0 if card is None else card.kv_blocks)
    return ReplicaRow(
        name=name,
        version=version.version,
        fingerprint="" if version.text is None else version.text.version,
        state=str(client.state),
        stage=None if is_ready else client.progress[0],
        progress=None if is_ready else round(client.progress[1], 2),
        starts=client.starts,
        running=stats.running,
        waiting=stats.waiting,
        kv_blocks=blocks,
        # Before its first step an engine has sent no gauges: all its blocks are free.
        kv_blocks_free=stats.kv_blocks_free if stats.kv_blocks_total else blocks,
        step_s=stats.step_s or None,
        kernels=None if card is None else card.kernels,
        dtype=None if card is None else card.quantization or card.dtype,
        golden=None if monitor is None else _golden(monitor, version.name, name),
    )


def _golden(monitor: QualityMonitor, model: str, name: str) -> GoldenResults:
    counts, drift = monitor.counts, monitor.drifted.get(name)
    return GoldenResults(
        passed_at=counts.passed_at.get((model, name)),
        equal=counts.results[model, name, "equal"],
        drifted=counts.results[model, name, "drifted"],
        unanswered=counts.results[model, name, "unanswered"],
        problem=None if drift is None else drift.detail,
        action=None if drift is None else str(drift.action),
    )


def _rollout(gateway: Gateway, model: str) -> RolloutState | None:
    found = gateway.control.rollouts.rollouts.get(model)
    if found is None:
        return None
    return RolloutState(
        candidate=found.candidate,
        phase=found.phase.value,
        paused=found.paused,
        share=found.shares[found.candidate],
        answered=found.answered,
    )
