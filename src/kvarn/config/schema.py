"""Every setting of Kvarn, with its unit, its default and why it is so."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from kvarn.config.alerts import AlertsConfig
from kvarn.config.console import ConsoleConfig
from kvarn.config.fleet import FleetConfig
from kvarn.config.gateway import GatewayConfig
from kvarn.config.model import ModelConfig
from kvarn.config.platform import (
    AdmissionConfig,
    AuthConfig,
    BatchesConfig,
    LimitsConfig,
    MeteringConfig,
    PriceConfig,
    ResponsesConfig,
    RetentionConfig,
    SafetyConfig,
    SloConfig,
    StoreConfig,
    TracesConfig,
)
from kvarn.config.quality import QualityConfig
from kvarn.config.replica import ReplicaConfig
from kvarn.config.response_cache import ResponseCacheConfig
from kvarn.config.retrieval import RetrievalConfig
from kvarn.config.rollout import RolloutConfig
from kvarn.config.routes import RouteConfig
from kvarn.config.sandbox import SandboxConfig
from kvarn.config.section import Section
from kvarn.config.tools import ToolsConfig


class KvarnConfig(Section):
    """The root of the configuration."""

    models: tuple[ModelConfig, ...] = (ModelConfig(name="kvarn-demo", path="kvarn-demo"),)
    """The models to serve. The first is the default of the command line's tools."""

    routes: tuple[RouteConfig, ...] = ()
    """More names that clients may use, each answered by one of several models."""

    gateway: GatewayConfig = GatewayConfig()
    """HTTP settings of the gateway."""

    replica: ReplicaConfig = ReplicaConfig()
    """Supervision of engine processes."""

    fleet: FleetConfig = FleetConfig()
    """Machines that engines run on, and the starting and stopping of replicas."""

    data_dir: str = Field("~/.local/share/kvarn", min_length=1)
    """Data directory of the server on this machine: its database, files, and usage not yet in the ledger."""

    auth: AuthConfig = AuthConfig()
    """Access to the server."""

    store: StoreConfig = StoreConfig()
    """Database of tenants, keys, the ledger and conversations."""

    limits: LimitsConfig = LimitsConfig()
    """Requests and tokens per minute, and how many requests may run at once."""

    metering: MeteringConfig = MeteringConfig()
    """The usage ledger."""

    slo: SloConfig = SloConfig()
    """Latency targets."""

    admission: AdmissionConfig = AdmissionConfig()
    """Queueing and refusal of requests at the gateway."""

    quality: QualityConfig = QualityConfig()
    """Checks for replicas that answer wrongly without failing."""

    rollout: RolloutConfig = RolloutConfig()
    """Rollouts of new versions of models, unless a rollout has settings of its own."""

    safety: SafetyConfig = SafetyConfig()
    """Checks of prompts and answers."""

    responses: ResponsesConfig = ResponsesConfig()
    """`/v1/responses` in the background."""

    tools: ToolsConfig = ToolsConfig()
    """Tools that the platform runs for a model."""

    retention: RetentionConfig = RetentionConfig()
    """Time that data is kept."""

    batches: BatchesConfig = BatchesConfig()
    """Running of batches."""

    sandbox: SandboxConfig = SandboxConfig()
    """Sandboxes for documents and for code that models write."""

    retrieval: RetrievalConfig = RetrievalConfig()
    """Search in vector stores."""

    response_cache: ResponseCacheConfig = ResponseCacheConfig()
    """Answers that are given again without asking a model."""

    traces: TracesConfig = TracesConfig()
    """Traces of requests, sent to a collector."""

    alerts: AlertsConfig = AlertsConfig()
    """Alerts of the server itself."""

    console: ConsoleConfig = ConsoleConfig()
    """Console in the browser."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level of the log on standard error."""

    log_format: Literal["text", "json"] = "text"
    """Form of the log: lines of `key=value` (`text`) or one JSON object a line (`json`)."""

    @model_validator(mode="after")
    def _vectors_have_a_database(self) -> KvarnConfig:
        if self.retrieval.index == "pgvector" and not (self.store.url or "").startswith("postgres"):
            raise ValueError("retrieval.index is pgvector, which needs PostgreSQL: set store.url, or leave it out")
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> KvarnConfig:
        names = [model.name for model in self.models]
        every_name = [name for model in self.models for name in (model.name, *model.aliases)]
        doubled = sorted({name for name in every_name if every_name.count(name) > 1})
        if doubled:
            raise ValueError(f"two models share the name {doubled[0]!r}: give each model its own name")
        if not names:
            raise ValueError("no model to serve: name at least one under `models`")
        batch_only = {name for each in self.models if each.spot == "batch" for name in (each.name, *each.aliases)}
        for model in self.models:
            for step in model.fallbacks:
                if step.model not in names or step.model == model.name:
                    raise ValueError(f"the fallback of {model.name!r} must be another served model, not {step.model!r}")
                if step.model in batch_only and model.spot != "batch":
                    why = f"the fallback of {model.name!r}, {step.model!r}, takes the batch tier only"
                    raise ValueError(f"{why}: name a model that takes all requests")
                if step.on == ("overload",) and not self.sheds_load(model):
                    raise ValueError(f"the fallback of {model.name!r} is never used: set its `load_shedding` to true")
            if model.external is not None and model.name == self.safety.model:
                raise ValueError(f"safety.model names {model.name!r}, which is `external`: Kvarn must run it itself")
        self._check_routes(every_name, batch_only)
        return self

    def _check_routes(self, names: list[str], batch_only: set[str]) -> None:
        for route in self.routes:
            if route.name in names or [each.name for each in self.routes].count(route.name) > 1:
                raise ValueError(f"the route {route.name!r} has the name of a model or of another route")
            if unknown := [name for name in route.models if name not in names and name.partition(":")[0] not in names]:
                raise ValueError(f"the route {route.name!r} names {unknown[0]!r}, which is not a served model")
            for_batches = {rule.model for rule in route.rules if rule.batch}
            for_batches |= set() if route.shadow is None else {route.shadow.model}
            any_request = [name for name in route.models if name not in for_batches]
            if found := [name for name in any_request if name in batch_only or name.partition(":")[0] in batch_only]:
                why = f"the route {route.name!r} sends any request to {found[0]!r}, which takes the batch tier only"
                raise ValueError(f"{why}: name it in a rule with `batch: true`")

    @property
    def prices(self) -> tuple[PriceConfig, ...]:
        """Prices of all models: those of `metering`, and of external models that these leave out."""
        known = {price.model for price in self.metering.prices}
        own = [
            PriceConfig(model=model.name, since="1970-01-01", **model.external.price.model_dump())
            for model in self.models
            if model.external is not None and model.external.price is not None and model.name not in known
        ]
        return (*self.metering.prices, *own)

    def slo_of(self, model: ModelConfig) -> SloConfig:
        """The latency targets of a model: its own where it has any."""
        ttft, tpot = model.ttft_target_s or self.slo.ttft_target_s, model.tpot_target_s or self.slo.tpot_target_s
        return SloConfig(ttft_target_s=ttft, tpot_target_s=tpot)

    def sheds_load(self, model: ModelConfig) -> bool:
        """Whether requests for a model that would miss its targets are refused."""
        return self.admission.load_shedding if model.load_shedding is None else model.load_shedding
