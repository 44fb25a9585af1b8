"""Makes what routes need of a configuration and of the models that are served."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from kvarn.answers.grammar_pool import GrammarPool
from kvarn.answers.held_bytes import ByteBudget
from kvarn.answers.moderation.checks import Moderation
from kvarn.answers.storage_quota import StorageQuota
from kvarn.catalog.engine_metrics import EngineCollector
from kvarn.catalog.held_requests import HeldRequests
from kvarn.catalog.model_choice import ModelRoutes
from kvarn.catalog.model_table import ModelTable
from kvarn.catalog.models import ReplicasByModel, ServedModel, limits_of
from kvarn.catalog.routing_metrics import RoutingCollector
from kvarn.catalog.text_pool import TextPool
from kvarn.config.schema import KvarnConfig
from kvarn.external.model import connect
from kvarn.fleet.autoscale.loop import Autoscaling
from kvarn.fleet.controller import FleetController
from kvarn.fleet.shared_counts import SharedState
from kvarn.gateway.body import BodyReader
from kvarn.gateway.services import Services
from kvarn.gateway.state import Gateway
from kvarn.metering.usage_reports import Reports
from kvarn.observe.external import ExternalMetrics
from kvarn.observe.metrics import GatewayMetrics
from kvarn.observe.model_choice import ModelChoiceMetrics
from kvarn.quality.golden_models import GoldenModels
from kvarn.quality.metrics import QualityCollector
from kvarn.quality.monitor import OnDrift, QualityMonitor
from kvarn.responses.background import run_background
from kvarn.responses.background_runs import BackgroundResponses
from kvarn.rollouts.controller import Rollouts
from kvarn.rollouts.shadow import Shadows


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
    """What routes need, and what of it is started and stopped with the application; see `create_app`."""
    is_main = shared is None or shared.is_main
    table, text = ModelTable(models_by_name), TextPool(pool, config.gateway.tokenize_threads)
    slo = {model.name: config.slo_of(model.config) for model in table}
    metrics = GatewayMetrics(slo, slo)
    if is_main:
        metrics.registry.register(EngineCollector(ReplicasByModel(models_by_name)))
    metrics.registry.register(RoutingCollector(models_by_name))
    _connect_external(table, metrics)
    services = Services(config, metrics.registry, models_by_name, shared, metrics.slo_missed)
    store, held, golden = (
        services.store,
        ByteBudget(config.gateway.max_held_bytes),
        GoldenModels(table, text, config.quality.prompts),
    )
    choice_metrics = ModelChoiceMetrics(metrics.registry)
    routes = ModelRoutes(table, config.routes, choice_metrics, services.admission.predicted_ttft_s)
    shadows = Shadows(choice_metrics, services.admission.enter)
    rollouts = Rollouts(routes, config.routes, shadows, table, store, text, may_lead=is_main)
    requests = HeldRequests(services.arrivals, table, engines_outlive_gateways=config.fleet.launcher == "ray")
    if fleet is not None:
        rollouts.on_saved = fleet.wake
    if autoscaling is not None:
        requests.on_held = autoscaling.wake
    watch = _watch(golden, config, take_out, metrics)
    if autoscaling is not None and watch is not None:
        autoscaling.golden_prompts = watch.asked
    gateway = Gateway(
        config=config,
        models=table,
        routes=routes,
        shadows=shadows,
        rollouts=rollouts,
        metrics=metrics,
        store=store,
        stages=services.stages,
        moderation=Moderation(config.safety, table, text),
        prompts=services.prompts,
        text=text,
        grammars=GrammarPool(limits_of(config.gateway)),
        held_requests=requests,
        storage_quota=StorageQuota(store, config.retention.max_stored_bytes),
        held=held,
        responses=BackgroundResponses(store, config.responses, lambda run: run_background(gateway, run)),
        key_cache=services.identity.key_cache,
        bodies=BodyReader(config.gateway, text, held, services.admission.check_body),
        reports=Reports(store),
        shared=shared,
        fleet=fleet,
        autoscaling=autoscaling,
        watch=watch,
        golden=golden,
    )
    return gateway, services


def _connect_external(models: ModelTable, metrics: GatewayMetrics) -> None:
    """Have models that other servers run reach these."""
    shown = ExternalMetrics(metrics.registry)
    for model in models:
        if model.config.external is not None:
            model.external = connect(model, shown)


def _watch(
    golden: GoldenModels, config: KvarnConfig, take_out: OnDrift | None, metrics: GatewayMetrics
) -> QualityMonitor | None:
    """Who finds replicas that answer wrongly; None: nobody shall, or nobody could take one out."""
    if take_out is None or not config.quality.enabled:
        return None
    watch = QualityMonitor(golden, config.quality, take_out)
    metrics.registry.register(QualityCollector(watch))
    return watch
