"""The context of every operation, made once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kvarn.answers.catalog import Catalog
from kvarn.answers.generator import Generator
from kvarn.answers.held_bytes import ByteBudget
from kvarn.answers.moderation.checks import Moderation
from kvarn.answers.observer import Observer
from kvarn.answers.record import RequestRecord
from kvarn.answers.storage_quota import StorageQuota
from kvarn.answers.structured.grammar_pool import GrammarPool
from kvarn.answers.turn import Stage
from kvarn.catalog.model_table import ModelTable
from kvarn.catalog.models import ReadyModel
from kvarn.catalog.text_pool import TextPool
from kvarn.config.gateway import GatewayConfig
from kvarn.config.schema import KvarnConfig
from kvarn.observe.metrics import GatewayMetrics
from kvarn.store.engine import Store

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class LifecycleSteps:
    """Stages, generators and observers of answers; see `kvarn.answers.lifecycle`."""

    stages: Sequence[Stage]  # in the order in which they see a turn: those that cost least first, the ledger last
    engines: Generator  # generates with the engines of this server
    external: Mapping[str, Generator] = field(default_factory=dict)
    """Generators of models that other servers run, by the model's name."""
    observers: Sequence[Observer] = ()

    def generator_of(self, model: ReadyModel) -> Generator:
        return self.external.get(model.name, self.engines)


@dataclass(frozen=True, slots=True)
class ServingContext:
    """Everything operations need that outlives a request."""

    config: KvarnConfig
    store: Store
    storage_quota: StorageQuota
    catalog: Catalog
    steps: LifecycleSteps
    moderation: Moderation
    text: TextPool
    grammars: GrammarPool
    metrics: GatewayMetrics
    held: ByteBudget  # memory of bodies and answers that requests may take together

    @property
    def gateway_config(self) -> GatewayConfig:
        return self.config.gateway

    @property
    def models(self) -> ModelTable:
        return self.catalog.models

    async def run(self, record: RequestRecord, work: Callable[[], ResultT]) -> ResultT:
        """Run text work for a request: on the event loop where it is small, in the pool where it is large."""
        return await self.text.run(record.principal.organization_id, record.body_bytes, work)
