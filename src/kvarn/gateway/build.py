"""Makes what routes need of a configuration and of the models that are served."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from kvarn.answers.catalog import Catalog
from kvarn.answers.context import LifecycleSteps, ServingContext
from kvarn.answers.engines import ENGINES
from kvarn.answers.generator import Generator
from kvarn.answers.held_bytes import ByteBudget
from kvarn.answers.lifecycle import answer
from kvarn.answers.model_routes import ModelRoutes
from kvarn.answers.moderation.answer_log import AnswerLog
from kvarn.answers.moderation.checks import Moderation
from kvarn.answers.observer import Observer
from kvarn.answers.stages.arrivals import ArrivalsStage
from kvarn.answers.stages.ledger import LedgerStage
from kvarn.answers.stages.limits import LimitsStage
from kvarn.answers.stages.replica import ReplicaStage
from kvarn.answers.stages.response_cache import ResponseCacheStage
from kvarn.answers.stages.semantic_cache import Embed
from kvarn.answers.storage_quota import StorageQuota
from kvarn.answers.structured.grammar_pool import GrammarPool
from kvarn.answers.traces import Traces
from kvarn.answers.turn import Stage
from kvarn.answers.turn_metrics import TurnObserver
from kvarn.catalog.held_requests import HeldRequests
from kvarn.catalog.metrics import EngineCollector, RoutingCollector
from kvarn.catalog.model_table import ModelTable
from kvarn.catalog.models import ReplicasByModel, ServedModel, sandbox_limits
from kvarn.catalog.text_pool import TextPool
from kvarn.catalog.turn_steps import steps_of
from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.schema import KvarnConfig
from kvarn.external.generator import external_generator
from kvarn.external.model import ExternalModel, connect
from kvarn.fleet.autoscale.loop import Autoscaling
from kvarn.fleet.controller import FleetController
from kvarn.fleet.shared_counts import SharedState
from kvarn.gateway.alerting import Alerting
from kvarn.gateway.planning import PlanningPool
from kvarn.gateway.services import Services
from kvarn.gateway.state import ControlPlane, Gateway
from kvarn.gateway.what_if import WhatIfRuns
from kvarn.kept.keeper import KeeperMetrics, RequestKeeper
from kvarn.kept.sampling import KeptSampler
from kvarn.metering.usage_reports import Reports
from kvarn.observe.external import ExternalMetrics
from kvarn.observe.history import CountedHistory
from kvarn.observe.host import HostCollector
from kvarn.observe.ingestion import IngestionMetrics
from kvarn.observe.metrics import GatewayMetrics
from kvarn.observe.model_choice import ModelChoiceMetrics
from kvarn.observe.tools import ToolMetrics
from kvarn.observe.traces.exporter import make_exporter
from kvarn.observe.traces.genai_metrics import make_genai_exporter
from kvarn.quality.golden_models import GoldenModels
from kvarn.quality.metrics import QualityCollector
from kvarn.quality.monitor import OnDrift, QualityMonitor
from kvarn.responses.background import run_background
from kvarn.responses.background_runs import BackgroundResponses
from kvarn.retrieval.build import make_retriever
from kvarn.retrieval.ingestion import IngestionWorker
from kvarn.retrieval.parsing.parse import ParseLimits, parse
from kvarn.retrieval.stores import Retrieval
from kvarn.rollouts.controller import Rollouts
from kvarn.rollouts.shadow import Shadows
from kvarn.store.engine import Store
from kvarn.tools.administration import ToolServerAdministration
from kvarn.tools.builtin.calculator import CALCULATOR
from kvarn.tools.builtin.clock import CLOCK
from kvarn.tools.code_interpreter.containers import Containers
from kvarn.tools.code_interpreter.provider import CodeInterpreterProvider
from kvarn.tools.execution import ToolRunner
from kvarn.tools.file_search import FileSearchProvider
from kvarn.tools.http_client import SafeHttp
from kvarn.tools.mcp.provider import McpProvider
from kvarn.tools.registered import ToolServers
from kvarn.tools.registry import ToolRegistry
from kvarn.tools.web_search import WebSearchProvider


def build_gateway(
    config: KvarnConfig,
    models_by_name: Mapping[str, ServedModel],
    pool: ThreadPoolExecutor,
    *,
    shared: SharedState | None,
    fleet: FleetController | None,
    autoscaling: Autoscaling | None,
    take_out: OnDrift | None,
) -> tuple[Gateway, Services]:
    """Build the gateway and the services that are started and stopped with the application; see `create_app`."""
    is_main = shared is None or shared.is_main
    table, text = ModelTable(models_by_name), TextPool(pool, config.gateway.tokenize_threads)
    metrics = _metrics(config, models_by_name, table, is_main=is_main)
    services = Services(config, metrics.registry, models_by_name, shared, metrics.slo_missed)
    metrics.history_sources.append(services.admission_metrics.length)
    store, golden = services.store, GoldenModels(table, text, config.quality.prompts)
    choice_metrics = ModelChoiceMetrics(metrics.registry)
    routes = ModelRoutes(table, config.routes, choice_metrics, services.admission.predicted_ttft_s)
    shadows = Shadows(choice_metrics)
    rollouts = Rollouts(routes, config.routes, shadows, table, store, text, may_lead=is_main)
    requests = HeldRequests(services.arrivals, table, engines_outlive_gateways=config.fleet.launcher != "local")
    if fleet is not None:
        rollouts.on_saved = fleet.wake
    if autoscaling is not None:
        requests.on_held = autoscaling.wake
        autoscaling.on_needed = services.arrivals.set_needed
    monitor = _quality_monitor(golden, config, take_out, metrics)
    if autoscaling is not None and monitor is not None:
        autoscaling.golden_prompts = monitor.asked
    traces = _traces(services, table, metrics)
    external = _connect_external(table, metrics)
    generators = {name: external_generator(model) for name, model in external.items()}
    observers = (rollouts.observer, shadows, traces, TurnObserver(metrics.turns), AnswerLog(services.prompts))
    wakes = fleet.wake if fleet is not None else None if shared is None else _sees_by_itself
    retrieval = _retrieval(config, store, lambda: gateway, wakes, metrics)
    steps = _steps(services, text, generators, observers, retrieval.index.embedders.embed_question)
    mcp = _mcp(config, store)
    containers = Containers(store, config.sandbox, Path(config.data_dir).expanduser())
    gateway = Gateway(
        config=config,
        store=store,
        storage_quota=StorageQuota(store, config.retention.max_stored_bytes),
        catalog=Catalog(table, routes, requests),
        steps=steps,
        moderation=Moderation(config.safety, table, text, services.prompts),
        text=text,
        grammars=GrammarPool(sandbox_limits(config.gateway)),
        metrics=metrics,
        held=ByteBudget(config.gateway.max_held_bytes),
        tools=_tools(config, services, metrics, retrieval, mcp, containers),
        responses=BackgroundResponses(store, config.responses, lambda run: run_background(gateway, run)),
        control=ControlPlane(
            key_cache=services.identity.key_cache,
            sessions=services.identity.sessions,
            oidc=services.identity.oidc,
            reports=Reports(store),
            fleet=fleet,
            autoscaling=autoscaling,
            shared=shared,
            monitor=monitor,
            golden=golden,
            shadows=shadows,
            rollouts=rollouts,
            external=list(external.values()),
            traces=traces,
            tool_servers=ToolServerAdministration(mcp),
            alerting=Alerting(config.alerts, partial(_read_metrics, metrics, shared), tells=is_main),
            history=shared.history if shared is not None else CountedHistory(metrics.counted),
            planning=PlanningPool(sandbox_limits(config.gateway)),
            what_if=WhatIfRuns(),
        ),
        retrieval=retrieval,
        containers=containers,
    )
    copies = replace(gateway, steps=replace(steps, stages=_copy_stages(services, text), observers=()))
    shadows.ask = partial(answer, copies)
    return gateway, services


def _tools(
    config: KvarnConfig,
    services: Services,
    metrics: GatewayMetrics,
    retrieval: Retrieval,
    mcp: McpProvider,
    containers: Containers,
) -> ToolRegistry:
    """The tools that run here, by their types in requests."""
    runner = ToolRunner(config.tools, services.store, services.metering, ToolMetrics(metrics.registry))
    tools = ToolRegistry(runner)
    tools.register("calculator", CALCULATOR)
    tools.register("clock", CLOCK)
    tools.register("file_search", FileSearchProvider(retrieval))
    tools.register("code_interpreter", CodeInterpreterProvider(containers))
    tools.register("mcp", mcp)
    tools.register("web_search", WebSearchProvider(mcp.servers, mcp.http))
    return tools


def _retrieval(
    config: KvarnConfig,
    store: Store,
    serving: Callable[[], ServingContext],
    wake_fleet: Callable[[], None] | None,
    metrics: GatewayMetrics,
) -> Retrieval:
    index = make_retriever(config, store, serving, wake_fleet)
    reads = partial(parse, limits=ParseLimits(without_sandbox=config.sandbox.parse_without))
    counts = IngestionMetrics(metrics.registry)
    ingestion = IngestionWorker(config, store, serving, index, index.embedders, reads, counts)
    return Retrieval(store, index, ingestion)


def _sees_by_itself() -> None:
    """Do nothing: the fleet is another process's, which looks at its deployments now and then."""


def _mcp(config: KvarnConfig, store: Store) -> McpProvider:
    http = SafeHttp(config.tools)
    return McpProvider(ToolServers(config, store), http, request_servers=config.tools.request_servers)


def _metrics(
    config: KvarnConfig, models_by_name: Mapping[str, ServedModel], table: ModelTable, *, is_main: bool
) -> GatewayMetrics:
    """The metrics of this process; the main one also shows those of the engines and of the machine."""
    slo = {model.name: config.slo_of(model.config) for model in table}
    metrics = GatewayMetrics(slo, slo)
    if is_main:
        by_model = ReplicasByModel(models_by_name)
        engines = EngineCollector(by_model, by_organization=config.gateway.metrics_by_organization)
        metrics.registry.register(engines)
        metrics.history_sources.append(engines)
        metrics.registry.register(HostCollector(Path(config.data_dir).expanduser()))
    metrics.registry.register(RoutingCollector(models_by_name))
    return metrics


def _traces(services: Services, table: ModelTable, metrics: GatewayMetrics) -> Traces:
    config = services.config.traces
    return Traces(
        make_exporter(config, metrics.registry),
        contents=config.contents,
        keeper=_keeper(services.config, services.store, table, metrics),
        prices=services.metering.prices,
        usage=make_genai_exporter(),
    )


async def _read_metrics(metrics: GatewayMetrics, shared: SharedState | None) -> CollectorRegistry:
    return metrics.registry if shared is None else await shared.metrics()


def _steps(
    services: Services, text: TextPool, external: Mapping[str, Generator], observers: Sequence[Observer], embed: Embed
) -> LifecycleSteps:
    """The parts of an answer's life, in order: what the cache has is no work for an engine, of which arrivals are
    counted first; the ledger comes last."""
    limits = LimitsStage(services.limiter, services.metering.prices, services.config.limits, services.limit_metrics)
    ledger = LedgerStage(services.metering)
    cache = ResponseCacheStage(
        services.config.response_cache,
        services.config.safety,
        services.cached_answers,
        services.answered_questions,
        (limits, ledger),
        embed,
        services.response_cache_metrics,
    )
    stages: list[Stage] = [cache, ArrivalsStage(services.arrivals), limits, *_copy_stages(services, text), ledger]
    return LifecycleSteps(stages, ENGINES, external, (*observers, cache))


def _copy_stages(services: Services, text: TextPool) -> list[Stage]:
    """The stages of copies of requests: these wait for idle capacity, and are neither limited nor paid."""
    return [ReplicaStage(text), services.admission]


def _keeper(config: KvarnConfig, store: Store, table: ModelTable, metrics: GatewayMetrics) -> RequestKeeper | None:
    counts = KeeperMetrics(metrics.registry)
    if not config.traces.kept.enabled:
        return None
    sampler = KeptSampler(config.traces.kept, SYSTEM_CLOCK.now, random.random, config.gateway.api_server_count)
    return RequestKeeper(store, sampler, counts, partial(steps_of, table))


def _connect_external(models: ModelTable, metrics: GatewayMetrics) -> dict[str, ExternalModel]:
    shown = ExternalMetrics(metrics.registry)
    found = [model for model in models if model.config.external is not None]
    return {model.name: connect(model, shown) for model in found}


def _quality_monitor(
    golden: GoldenModels, config: KvarnConfig, take_out: OnDrift | None, metrics: GatewayMetrics
) -> QualityMonitor | None:
    """The monitor of replicas that answer wrongly; None: disabled, or no replica could be taken out of service."""
    if take_out is None or not config.quality.enabled:
        return None
    monitor = QualityMonitor(golden, config.quality, take_out)
    metrics.registry.register(QualityCollector(monitor))
    return monitor
