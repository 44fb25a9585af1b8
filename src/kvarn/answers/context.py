"""What every operation needs, made once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar

from kvarn.answers.grammar_pool import GrammarPool
from kvarn.answers.held_bytes import ByteBudget
from kvarn.answers.moderation.checks import Moderation
from kvarn.answers.storage_quota import StorageQuota
from kvarn.answers.tiers import priority_of, tier_of
from kvarn.answers.work import DegradedError, RequestRecord, Stage, Work, salt_of
from kvarn.catalog.held_requests import HeldRequests
from kvarn.catalog.model_choice import NO_FEATURES, ModelRoutes, begin_answer, reason_of
from kvarn.catalog.model_table import ModelTable
from kvarn.catalog.models import BuiltInModel, ReadyModel, ServedModel
from kvarn.catalog.text_pool import TextPool
from kvarn.config.gateway import GatewayConfig
from kvarn.config.schema import KvarnConfig
from kvarn.identity.scopes import check_adapter, check_endpoint, check_model, may_see_adapter, may_use_model
from kvarn.observe.metrics import GatewayMetrics
from kvarn.rollouts.controller import Rollouts
from kvarn.rollouts.shadow import Shadows
from kvarn.routing.candidate import RouteRequest
from kvarn.routing.model_choice import RequestFeatures
from kvarn.safety.prompt_log import PromptLog
from kvarn.store.engine import Store
from kvarn.store.ledger import BATCH_TIER
from kvarn.wire.openai.errors import invalid_request, unavailable

if TYPE_CHECKING:
    from kvarn.answers.chat.answer import ChatRun
    from kvarn.answers.completion_answer import CompletionRun

ResultT = TypeVar("ResultT")
RunT = TypeVar("RunT", bound="ChatRun | CompletionRun")

_OPERATIONS = {
    "generate": "chat and text completions",
    "embed": "embeddings, reranking and scoring",
    "score": "reranking and scoring",
}
_ABLE = {"generate": ("generate",), "embed": ("embed",), "score": ("score", "embed")}
"""Kinds of models by what they must be able to do."""


@dataclass(frozen=True, slots=True)
class ServingContext:
    """What operations need that outlives a request."""

    config: KvarnConfig
    models: ModelTable
    routes: ModelRoutes
    shadows: Shadows
    rollouts: Rollouts
    metrics: GatewayMetrics
    store: Store
    stages: Sequence[Stage]
    """In the order in which they see a request: those that cost least first, the ledger last."""
    moderation: Moderation
    prompts: PromptLog
    text: TextPool
    grammars: GrammarPool
    storage_quota: StorageQuota
    held_requests: HeldRequests
    held: ByteBudget
    """Memory of bodies and answers that requests may take together."""

    @property
    def limits(self) -> GatewayConfig:
        """Bounds of requests."""
        return self.config.gateway

    async def run(self, record: RequestRecord, work: Callable[[], ResultT]) -> ResultT:
        """Run text work for a request: on the event loop where it is small, in the pool where it is large."""
        return await self.text.run(record.principal.organization_id, record.body_bytes, work)

    async def begin(
        self,
        record: RequestRecord,
        model: ReadyModel | BuiltInModel,
        *,
        prompt_tokens: int,
        prompt: Sequence[int] = (),
        cache_salt: str | None = None,
        max_output_tokens: int = 0,
        sequences: int = 1,
        output_bounded: bool = True,
        priority: int = 0,
        service_tier: str | None = None,
    ) -> Work:
        """Take work in for a request, and choose the replica that answers; it is settled when the record is closed.

        Args:
            record: The request's.
            model: What answers.
            prompt_tokens: To compute, over all its prompts.
            prompt: The prompt, of several the longest: what of it a replica has cached is found by its tokens.
            cache_salt: See `make_submit`.
            max_output_tokens: Most it may write, over all choices.
            sequences: Answers it asks for.
            output_bounded: See `Work`.
            priority: As the client asks for it.
            service_tier: The same in OpenAI's words.

        Raises:
            ApiError: A stage refuses it: a scope, a budget, a limit, admission.
            DegradedError: Another model shall answer; see `with_model`.
        """
        best = max(record.principal.priority, record.best_priority or record.principal.priority)
        runs_at = priority_of(service_tier, priority, best)
        work = Work(
            record=record,
            model=model.name,
            model_version=model.version,
            adapter=model.adapter if isinstance(model, ReadyModel) else "",
            replica=model.replica_name,
            prompt_tokens=prompt_tokens,
            max_output_tokens=max_output_tokens,
            priority=runs_at,
            service_tier=BATCH_TIER if record.best_priority is not None else tier_of(runs_at),
            sequences=sequences,
            output_bounded=output_bounded,
        )
        try:
            check_endpoint(record.principal, record.endpoint)  # not all come by HTTP
            if isinstance(model, ReadyModel) and model.external is None:
                await self._choose_replica(work, model.served, prompt, cache_salt)
            for enter in self.stages:
                await enter(work)
        except BaseException:
            work.usage.failed = True
            work.closing.close()
            raise
        record.closing.callback(work.closing.close)
        record.work = work
        return work

    async def _choose_replica(
        self, work: Work, model: ServedModel, prompt: Sequence[int], cache_salt: str | None
    ) -> None:
        principal, replicas, names, session = work.principal, model.replicas, b"", work.record.session
        if prompt and replicas.reads_names:
            salt = salt_of(principal, cache_salt)
            tenant = principal.organization_id
            names = await self.run(work.record, lambda: replicas.names(prompt, tenant, salt, work.adapter))
        work.route_request = RouteRequest(
            prompt_tokens=work.prompt_tokens,
            names=names,
            session=f"{principal.organization_id}/{session}" if session else "",
            adapter=work.adapter,
            sequences=work.sequences,
        )
        choice = replicas.choose_late(work.route_request)
        if choice is None:
            raise model.not_ready()
        work.closing.callback(work.settle_choice)
        work.go_to(choice)

    def ready_model(
        self, record: RequestRecord, name: str, kind: Literal["generate", "embed", "score"] | None = None
    ) -> ReadyModel:
        """The model a request names, ready to work; `kind` is what it must be able to do.

        Raises:
            ApiError: 404 unknown, 403 out of the key's scope, 400 of the wrong kind, 503 not ready yet.
        """
        model, adapter = self._find(record, self.routes.choose(record, name))
        ready = model.require_ready(adapter)
        if kind is not None and ready.card.kind not in _ABLE[kind]:
            does = _OPERATIONS.get(ready.card.kind, ready.card.kind)
            raise invalid_request(f"The model {name!r} does {does} only.", "model", "model_not_supported")
        return ready

    async def wait_for_model(
        self, record: RequestRecord, name: str, kind: Literal["generate", "embed", "score"]
    ) -> ReadyModel:
        """As `ready_model`; where its first replica is expected, the request waits for it."""
        await self.held_requests.until_ready(lambda: self.find_model(record, name))
        return self.ready_model(record, name, kind)

    async def with_model(
        self,
        record: RequestRecord,
        name: str,
        start: Callable[[ReadyModel], Awaitable[RunT]],
        features: RequestFeatures = NO_FEATURES,
        user: str | None = None,
    ) -> RunT:
        """Start an answer with the model that a name stands for. Where that one cannot begin, another one does, as the
        configuration says: an answer that may be given to another has begun when this returns. Raises as `ready_model`
        and `start` do, and what ends the answer before its beginning."""
        routes, first_error = self.routes, None
        tried = [self.models.canonical(routes.choose(record, name, features, user))]
        while True:
            model = tried[-1]
            record.overload_fallbacks = routes.overload_fallbacks(record, tried)
            try:
                return self.rollouts.observer.watch(record, await self._start_with(record, model, tried, start))
            except Exception as error:
                self.rollouts.observer.failed(record, model, error)
                reason = reason_of(error)
                if isinstance(error, DegradedError):
                    following: str | None = error.model
                else:
                    following = None if reason is None else routes.next_model(record, reason, tried)
                    first_error = first_error or error
                if reason is None or following is None:
                    raise (first_error or error) from None
            self._give_up(record)
            routes.metrics.fallbacks.labels(self.models.name_of(model), self.models.name_of(following), reason).inc()
            record.degraded_from = record.degraded_from or model
            record.headers["x-kvarn-fallback"] = f"{reason}; from={model}"
            if record.route is not None:
                record.chosen_model = following
            tried.append(following)

    async def _start_with(
        self, record: RequestRecord, model: str, tried: list[str], start: Callable[[ReadyModel], Awaitable[RunT]]
    ) -> RunT:
        """Start an answer with this very model; wait for its beginning where another one may answer else."""
        await self.held_requests.until_ready(lambda: self._find(record, model)[0])
        if not self.routes.may_move(record, tried):
            return await start(self.ready_model(record, model, "generate"))
        admitted = self.routes.admit(model)
        if admitted is None:
            raise unavailable(f"The model {model!r} has failed too often lately. Try again.", "replica_lost")
        error: BaseException | None = None
        try:
            run = await start(self.ready_model(record, model, "generate"))
            return replace(run, deltas=await begin_answer(run.deltas, record.client_left))
        except BaseException as failure:
            error = failure
            raise
        finally:
            self.routes.ended(admitted, error)

    def _give_up(self, record: RequestRecord) -> None:
        """Settle the work of a model that could not begin."""
        if record.work is not None:
            record.work.usage.failed = True
            record.work.closing.close()
            record.work = None
        record.headers.pop("x-kvarn-replica", None)
        record.early_replica = ""

    def find_model(self, record: RequestRecord, name: str) -> ServedModel:
        """The model a request names, whether it is ready or not.

        Raises:
            ApiError: 404 unknown, 403 out of the key's scope.
        """
        return self._find(record, self.routes.choose(record, name))[0]

    def _find(self, record: RequestRecord, name: str) -> tuple[ServedModel, str]:
        """The model that a name stands for, which the record notes, and the adapter's name where it names one."""
        found = self.models.find_adapter(name)
        if found is not None and may_see_adapter(record.principal, found[1]):
            model, adapter = found[0], found[1].name
        else:
            model = self.models.choose_version(name, visible=lambda served: may_use_model(record.principal, served))
            adapter = ""
        if record.route is None or name not in record.route.models:  # who may use a route may use its models by it
            check_model(record.principal, model.name)
            if adapter:
                check_adapter(record.principal, adapter)
        record.model = model.name
        return model, adapter
