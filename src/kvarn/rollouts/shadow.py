"""Shadow traffic: copies of requests to a model that is tried out, whose answers are compared, measured and dropped."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from kvarn.admission.demand import BATCH
from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.work import RequestRecord, Stage
from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.routes import RouteConfig, ShadowConfig
from kvarn.observe.model_choice import ModelChoiceMetrics
from kvarn.routing.model_choice import is_shadowed

if TYPE_CHECKING:
    from kvarn.answers.chat.answer import ChatRun
    from kvarn.answers.completion_answer import CompletionRun
    from kvarn.answers.context import ServingContext

RunT = TypeVar("RunT", bound="ChatRun | CompletionRun")

_MAX_CHARS = 65_536
"""Of an answer that are compared."""
_LONGEST_S = 600.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ComparedAnswer:
    """The first choice of an answer, as far as it is compared."""

    began: float
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    first_s: float | None = None
    """Seconds from its beginning to the first token."""
    total_s: float = 0.0
    finish_reason: str | None = None

    def take(self, delta: ChoiceDelta) -> None:
        """Take a delta."""
        now = SYSTEM_CLOCK.now()
        self.first_s = now - self.began if self.first_s is None else self.first_s
        self.total_s = now - self.began
        if delta.index == 0:
            self.finish_reason = delta.finish_reason or self.finish_reason
            self.token_ids += delta.token_ids
            if len(self.text) < _MAX_CHARS:
                self.text = (self.text + delta.written)[:_MAX_CHARS]


@dataclass(frozen=True, slots=True)
class ShadowResult:
    """An answer and its copy."""

    route: str
    model: str
    """That made the copy."""
    answer: ComparedAnswer
    copy: ComparedAnswer
    agreement: float
    """Part of the longer text that both begin with; 1: they are the same."""


class Shadows:
    """The copies of one gateway process.

    Args:
        metrics: Where copies are counted.
        admission: The only stage that a copy passes: it waits for idle capacity, and is neither limited nor paid.
        on_result: Is given each copy that was finished.
        on_failure: Is given each that failed: its route, the model that should have made it, and why.
    """

    def __init__(
        self,
        metrics: ModelChoiceMetrics,
        admission: Stage,
        on_result: Callable[[ShadowResult], None] = lambda result: None,
        on_failure: Callable[[str, str, Exception], None] = lambda route, model, error: None,
    ) -> None:
        self.on_result = on_result
        self.on_failure = on_failure
        self._metrics = metrics
        self._admission = admission
        self._running: dict[str, set[asyncio.Task[None]]] = {}

    def seed_of(self, route: RouteConfig | None, record: RequestRecord, seed: int | None) -> int | None:
        """The seed of a request: one that will be copied has one, so that its copy has the same."""
        copied = route is not None and record.best_priority is None and is_shadowed(route, record.id)
        return secrets.randbits(63) if copied and seed is None else seed

    def watch(
        self,
        serving: ServingContext,
        record: RequestRecord,
        run: RunT,
        ask: Callable[[ServingContext, RequestRecord, str], Awaitable[ChatRun | CompletionRun]],
    ) -> RunT:
        """A run as it is; where its request is to be copied, it is once the run has ended.

        Args:
            serving: Of the request.
            record: Of the request.
            run: Its answer.
            ask: Starts the copy: with this context, this record and this model.
        """
        route = record.route
        if route is None or route.shadow is None or record.best_priority is not None or record.degraded_from:
            return run
        if not is_shadowed(route, record.id):
            return run
        heard = ComparedAnswer(record.received)
        begin = lambda shadow: self._begin(serving, record, route, shadow, heard, ask)  # noqa: E731
        return dataclasses.replace(run, deltas=_observed(run.deltas, heard, route.shadow, begin))

    async def stop(self) -> None:
        """Give up all copies."""
        tasks = [task for tasks in self._running.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(
        self,
        serving: ServingContext,
        record: RequestRecord,
        route: RouteConfig,
        shadow: ShadowConfig,
        heard: ComparedAnswer,
        ask: Callable[[ServingContext, RequestRecord, str], Awaitable[ChatRun | CompletionRun]],
    ) -> None:
        running = self._running.setdefault(route.name, set())
        if len(running) >= shadow.max_in_flight:
            self._metrics.shadows.labels(route.name, shadow.model, "dropped").inc()
            return
        own = RequestRecord(
            f"shadow-{record.request_id}",
            endpoint=record.endpoint,
            principal=dataclasses.replace(record.principal, log_prompts=False),
            best_priority=BATCH,
            body_bytes=record.body_bytes,
            route=route,
            chosen_model=shadow.model,
        )
        context = dataclasses.replace(serving, stages=(self._admission,))
        task = asyncio.create_task(self._run(own, shadow.model, heard, lambda: ask(context, own, route.name)))
        running.add(task)
        task.add_done_callback(running.discard)

    async def _run(
        self,
        own: RequestRecord,
        model: str,
        heard: ComparedAnswer,
        ask: Callable[[], Awaitable[ChatRun | CompletionRun]],
    ) -> None:
        assert own.route is not None
        route, copy, outcome = own.route.name, ComparedAnswer(SYSTEM_CLOCK.now()), "failed"
        try:
            async with asyncio.timeout(_LONGEST_S), aclosing((await ask()).deltas) as deltas:
                async for delta in deltas:
                    copy.take(delta)
            agreement = agreement_of(heard.text, copy.text)
            outcome = "same" if heard.text == copy.text and heard.finish_reason == copy.finish_reason else "different"
            self._metrics.shadow_agreement.labels(route, model).observe(agreement)
            for name, answer in (("answer", heard), ("copy", copy)):
                self._metrics.shadow_seconds.labels(route, model, name, "first_token").observe(answer.first_s or 0.0)
                self._metrics.shadow_seconds.labels(route, model, name, "total").observe(answer.total_s)
            self.on_result(ShadowResult(route, model, heard, copy, agreement))
        except Exception as error:
            _log.info("the copy of a request failed: %s", error, extra={"model": model, "request": own.request_id})
            self.on_failure(route, model, error)
        finally:
            self._metrics.shadows.labels(route, model, outcome).inc()
            await own.close()


async def _observed(
    deltas: AsyncGenerator[ChoiceDelta, None],
    heard: ComparedAnswer,
    shadow: ShadowConfig,
    begin: Callable[[ShadowConfig], None],
) -> AsyncGenerator[ChoiceDelta, None]:
    """The deltas; after the last of them the copy begins."""
    async with aclosing(deltas):
        async for delta in deltas:
            heard.take(delta)
            yield delta
    begin(shadow)


def agreement_of(first: str, second: str) -> float:
    """Part of the longer text that both begin with; 1 where both are empty."""
    longest, shortest = max(len(first), len(second)), min(len(first), len(second))
    same = next((at for at in range(shortest) if first[at] != second[at]), shortest)
    return same / longest if longest else 1.0
