"""Services besides models: the database, keys, limits and the ledger; started and stopped with the app."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry

from kvarn.answers.stages.admission import AdmissionStage
from kvarn.catalog.models import ServedModel
from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.response_cache import ResponseCacheConfig
from kvarn.config.schema import KvarnConfig
from kvarn.fleet.shared_counts import SharedState
from kvarn.identity.service import Identity
from kvarn.jobs.periodic import Periodic
from kvarn.limits.limiter import Limiter
from kvarn.metering.service import Metering
from kvarn.observe.admission import AdmissionMetrics
from kvarn.observe.arrivals import ArrivalMetrics
from kvarn.observe.limits import LimitMetrics
from kvarn.observe.response_cache import ResponseCacheMetrics
from kvarn.observe.store import StoreMetrics
from kvarn.response_cache.memory import MemoryAnswers
from kvarn.response_cache.questions import Questions
from kvarn.response_cache.store import AnswerStore
from kvarn.safety.prompt_log import PromptLog
from kvarn.store import migrate
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError, StoreError, StoreRefusedError
from kvarn.store.health import StoreState
from kvarn.store.repositories.leases import probe_writes

_RETRY_S = 1.0
_SWEEP_EVERY_S = 30.0

_log = logging.getLogger("kvarn.gateway")


class Services:
    """The services of one gateway process, joined. `slo_missed` hears of each request with latency targets that
    admission refuses, with its model.

    Raises:
        ConfigError: It would be open to other machines, or the URL of Redis cannot be used.
        StoreError: The configured database cannot be used.
    """

    def __init__(
        self,
        config: KvarnConfig,
        registry: CollectorRegistry | None = None,
        models: Mapping[str, ServedModel] | None = None,
        shared: SharedState | None = None,
        slo_missed: Callable[[str], None] = lambda model: None,
    ) -> None:
        self.config = config
        self.admission_metrics = AdmissionMetrics(registry, slo_missed)
        self.admission = AdmissionStage(config, models or {}, self.admission_metrics)
        self.store = Store.open(config)
        health = self.store.health
        self.store_metrics = StoreMetrics(
            registry, lambda: health.state is StoreState.AWAY, lambda: health.state is StoreState.READ_ONLY
        )
        self.limit_metrics = LimitMetrics(registry)
        self.limiter = Limiter(config.limits, self.limit_metrics, local=shared.counts if shared else None)
        self.metering = Metering(config, self.store, registry, self.limiter.budgets)
        self.identity = Identity(config, self.store)
        self.prompts = PromptLog(config, self.store)
        self.arrivals = ArrivalMetrics(registry)
        self.response_cache_metrics = ResponseCacheMetrics(registry)
        self.cached_answers = _answer_store(config.response_cache, self.response_cache_metrics)
        cache = config.response_cache
        self.answered_questions = Questions(cache.error_bound, cache.project_questions, cache.memory_mib << 20)
        self._tasks: list[asyncio.Task[None]] = []
        self._sweeping = Periodic("deletions of cached answers", self._sweep_answers, _SWEEP_EVERY_S)
        self._probing = Periodic("probes of the database", self._probe_store, _RETRY_S)

    async def start(self) -> None:
        """Bring the database up to date and start what runs beside the requests. Where the database is away, serving
        begins all the same, and this goes on in the background. Raises `StoreError`: the schema cannot be used, or the
        first administrator's key cannot be written."""
        self.metering.open()
        self.identity.start()
        self._sweeping.start()
        await self.limiter.start()
        try:
            await self._prepare_store()
        except StoreRefusedError:
            raise
        except StoreAwayError as error:
            _log.warning("%s: serving without it until it is back", error)
            self._tasks.append(asyncio.create_task(self._prepare_store_later(str(error))))

    async def _sweep_answers(self) -> None:
        await self.cached_answers.sweep()
        self.answered_questions.sweep()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._probing.stop()
        await self._sweeping.stop()
        await self.cached_answers.close()
        await self.admission.close()
        await self.prompts.close()
        await self.metering.stop()
        await self.limiter.stop()  # what is on the ledger by now need not be held in Redis any more
        await self.identity.stop()
        await self.store.close()

    async def _prepare_store(self) -> None:
        if self.config.store.migrate:
            await migrate.upgrade(self.store)
        else:
            await migrate.check(self.store)
        await self.identity.prepare()
        await self.metering.start()
        self._probing.start()

    async def _probe_store(self) -> None:
        """Ask a database that is not well now and then: without requests nothing else would find it well again."""
        if self.store.health.state is not StoreState.UP:
            await probe_writes(self.store)

    async def _prepare_store_later(self, reported: str) -> None:
        while True:
            await asyncio.sleep(_RETRY_S)
            try:
                await self._prepare_store()
            except Exception as error:  # whatever it is: given up, there would be no ledger until the next start
                if str(error) != reported:
                    reported = str(error)
                    known = isinstance(error, StoreError)
                    _log.error("the database cannot be used yet: %s", error, exc_info=not known)
            else:
                _log.info("the database is back")
                return


def _answer_store(config: ResponseCacheConfig, metrics: ResponseCacheMetrics) -> AnswerStore:
    """The store that the configuration names. Raises `ConfigError`: the URL of Redis cannot be used."""
    if config.redis_url is not None:
        from kvarn.response_cache.redis import RedisAnswers  # an extra

        return RedisAnswers(config.redis_url, config.timeout_s, metrics.faults.inc)
    return MemoryAnswers(config.project_mib << 20, config.memory_mib << 20, SYSTEM_CLOCK.time, metrics.bytes.set)
