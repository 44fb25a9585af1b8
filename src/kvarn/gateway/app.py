"""The ASGI application."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

import kvarn
from kvarn.batches.worker import BatchWorker
from kvarn.catalog.adapters import AdapterReconciler
from kvarn.catalog.models import ServedModel, replicas_with_tiers
from kvarn.config.schema import KvarnConfig
from kvarn.evaluations.worker import EvaluationWorker
from kvarn.fleet.autoscale.loop import Autoscaling
from kvarn.fleet.controller import FleetController
from kvarn.fleet.shared_counts import SharedState
from kvarn.gateway.alerting import Alerting
from kvarn.gateway.build import build_gateway
from kvarn.gateway.console.live.watch import Watches
from kvarn.gateway.console.routes import CONSOLE_ROUTERS
from kvarn.gateway.deleted_tenants import TELL_EVERY_S, DeletedTenants
from kvarn.gateway.documentation import router as documentation_router
from kvarn.gateway.errors import add_error_handlers
from kvarn.gateway.middleware import PUBLIC, OpenRequests, RequestMiddleware
from kvarn.gateway.openapi import JsonRoute, extend_openapi
from kvarn.gateway.routes import (
    batches,
    chat,
    completions,
    containers,
    conversations,
    encoders,
    evaluations,
    feedback,
    files,
    mcp_server,
    message_batches,
    messages,
    models,
    ollama,
    operation,
    responses,
    rollouts,
    sessions,
    tokens,
    vector_stores,
    vllm,
)
from kvarn.gateway.routes.organization import (
    audit_logs,
    budgets,
    deployments,
    keys,
    projects,
    rate_limits,
    tenants,
    tool_servers,
    usage,
    users,
)
from kvarn.gateway.services import Services
from kvarn.gateway.state import Gateway
from kvarn.identity.authenticator import Authenticator
from kvarn.jobs.database_jobs import content_worker, kept_requests_worker, retention_worker, stored_bytes_worker
from kvarn.jobs.periodic import Periodic
from kvarn.jobs.worker import Worker
from kvarn.kept.keeper import WRITE_EVERY_S
from kvarn.observe.history import EVERY_S
from kvarn.quality.monitor import OnDrift, QualityMonitor
from kvarn.rollouts.controller import Rollouts
from kvarn.store.errors import StoreError
from kvarn.tools.code_interpreter.containers import Containers

_COUNT_EVERY_S = 60.0
_SWEEP_EVERY_S = 3600.0
_EXPORT_EVERY_S = 1.0
_SETTLE_S = 5.0  # given to requests whose time to finish is over: to put away what they have, and to be settled

_THIS_MACHINE = r"https?://(localhost|([a-z0-9-]+\.)+localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?"
"""Origins that `check_host` takes for this machine's."""

_log = logging.getLogger("kvarn.gateway")

_Worker = Worker[Any] | Periodic | QualityMonitor | Rollouts | Containers | Alerting


_ROUTERS = [
    module.router
    for module in (
        *(chat, completions, messages, message_batches, ollama, responses, conversations, encoders, tokens, models),
        *(files, containers, vector_stores, sessions, batches, evaluations, feedback, rollouts, operation, vllm),
        mcp_server,
        *(projects, users, keys, rate_limits, tenants, audit_logs, usage, budgets, deployments, tool_servers),
    )
]
_ROUTERS += [feedback.administration, documentation_router]


def create_app(
    config: KvarnConfig,
    models_by_name: Mapping[str, ServedModel],
    authenticator: Authenticator | None = None,
    *,
    shared: SharedState | None = None,
    fleet: FleetController | None = None,
    autoscaling: Autoscaling | None = None,
    take_out: OnDrift | None = None,
    start_after: Callable[[], Awaitable[None]] | None = None,
) -> FastAPI:
    """Build the gateway's application. It answers at once; models become ready as their replicas and tokenizers do.

    Args:
        models_by_name: The replicas are started and stopped by the caller.
        authenticator: Default: as the configuration says.
        shared: Counts kept together with the server's other processes. Default: there are none.
        fleet, autoscaling: Given where this process runs them.
        take_out: Takes a replica that answers wrongly out of service. Default: this process does not watch replicas.
        start_after: Connections are accepted once this is done. Default: at once.
    """
    pool = ThreadPoolExecutor(config.gateway.tokenize_threads, thread_name_prefix="tokenize")
    gateway, services = build_gateway(
        config, models_by_name, pool, shared=shared, fleet=fleet, autoscaling=autoscaling, take_out=take_out
    )
    open_requests = OpenRequests()
    authenticator = authenticator or services.identity.authenticator
    app = FastAPI(
        title="Kvarn",
        version=kvarn.__version__,
        summary="OpenAI-compatible serving of large language models.",
        lifespan=lambda app: _lifespan(app, gateway, services, open_requests, pool, start_after),
        docs_url=None,  # FastAPI's page fetches its scripts from a CDN; ours works offline
        redoc_url=None,
        redirect_slashes=False,
    )
    app.root_path = config.gateway.root_path  # FastAPI() warns that its argument of this name is deprecated
    app.state.gateway = gateway
    app.state.check_length = services.admission.check_length
    app.state.authenticator = authenticator
    app.state.start_error = None
    app.state.stopping = asyncio.Event()  # set when the server begins to stop: streams without an end of their own end
    app.state.console_streams = Counter()
    app.state.watches = Watches()
    app.add_middleware(
        RequestMiddleware,
        metrics=gateway.metrics,
        authenticator=authenticator,
        open_requests=open_requests,
        check_process=services.admission.check_process,
        config=config.gateway,
        traces=gateway.control.traces,
        observers=gateway.steps.observers,
    )
    _add_cors(app, config.gateway.allowed_origins)
    add_error_handlers(app)
    for router in (*_ROUTERS, *(CONSOLE_ROUTERS if config.console.enabled else ())):
        app.include_router(router)
    routes = [route for router in _ROUTERS for route in router.routes if isinstance(route, JsonRoute)]
    extend_openapi(app, routes, PUBLIC)
    return app


def _add_cors(app: FastAPI, origins: Collection[str] | None) -> None:
    """Answer preflight requests and mark answers for these origins; None: the pages that this machine serves.

    Outermost: browsers send preflight requests without the key.
    """
    app.add_middleware(
        CORSMiddleware,
        allow_origins=tuple(origins or ()),
        allow_origin_regex=_THIS_MACHINE if origins is None else None,
        allow_methods=("*",),
        allow_headers=("*",),
        expose_headers=("*",),
    )


@asynccontextmanager
async def _lifespan(
    app: FastAPI,
    gateway: Gateway,
    services: Services,
    open_requests: OpenRequests,
    pool: ThreadPoolExecutor,
    start_after: Callable[[], Awaitable[None]] | None,
) -> AsyncGenerator[None, None]:
    """Start what runs beside the requests; at the end, settle them before the ledger and the database close."""
    workers = _workers(gateway, services)
    try:
        await services.start()
    except StoreError as error:
        app.state.start_error = error
        raise
    except Exception:
        _log.exception("the gateway cannot start")  # the server would drop it
        raise
    for worker in workers:
        worker.start()
    loading = asyncio.create_task(gateway.models.load_text(pool, gateway.config.gateway))
    try:
        if start_after is not None:
            await start_after()
        yield
    finally:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        if left := await open_requests.over(_SETTLE_S):
            _log.error("%d requests were not settled before the end", left)
        await asyncio.gather(*[worker.stop() for worker in workers])
        await _close(gateway)
        await services.stop()
        pool.shutdown(wait=False, cancel_futures=True)


async def _close(gateway: Gateway) -> None:
    """Close what the requests used; what is still to be told or kept of them is."""
    control = gateway.control
    await control.golden.stop()
    await control.shadows.stop()
    await gateway.models.close()
    await gateway.grammars.close()
    await control.planning.close()
    await control.what_if.close()
    gateway.retrieval.index.close()
    await asyncio.gather(*[external.close() for external in control.external])
    for each in (control.traces.exporter, control.traces.usage, control.traces.keeper):
        if each is not None:
            await each.close()


def _workers(gateway: Gateway, services: Services) -> list[_Worker]:
    """Make what runs beside the requests."""
    config, control = gateway.config, gateway.control
    count_nearly_full = partial(gateway.storage_quota.count_nearly_full, services.store_metrics.nearly_full.set)
    workers: list[_Worker] = [
        gateway.responses,
        gateway.containers,
        control.rollouts,
        control.alerting,
        retention_worker(gateway.store, config.retention),
        stored_bytes_worker(gateway.store),
        Periodic("counts of organisations that are nearly full", count_nearly_full, _COUNT_EVERY_S),
        Periodic("sweeps of indexes", gateway.retrieval.index.sweep, _SWEEP_EVERY_S),
    ]
    if gateway.store.blobs is not None:
        workers.append(content_worker(gateway.store))
    if control.shared is None or control.shared.is_main:
        deleted = DeletedTenants(gateway.store, lambda: replicas_with_tiers(gateway.models))
        workers.append(Periodic("deletions of organisations' cached blocks", deleted.tell, TELL_EVERY_S))
        workers.append(Periodic("samples of the history", control.history.sample, EVERY_S))
    if control.fleet is not None:
        reconciler = AdapterReconciler(gateway.models, gateway.store)
        workers.append(Periodic("looks for adapters that are missing", reconciler.look, config.fleet.poll_s))
    if control.monitor is not None:
        workers.append(control.monitor)
    for external in control.external:
        workers += external.probes()
    if (keeper := control.traces.keeper) is not None:
        workers.append(Periodic("writes of kept requests", keeper.write, WRITE_EVERY_S))
        workers.append(kept_requests_worker(gateway.store, config.traces.kept))
    if (usage := control.traces.usage) is not None:
        workers.append(Periodic("exports of metrics", usage.export, usage.settings.interval_s))
    if (exporter := control.traces.exporter) is not None:
        workers.append(Periodic("exports of spans", exporter.export, _EXPORT_EVERY_S))
    if config.batches.enabled:
        workers += [BatchWorker(gateway), EvaluationWorker(gateway), gateway.retrieval.ingestion]
    return workers
