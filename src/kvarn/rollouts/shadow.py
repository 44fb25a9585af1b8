"""Shadow traffic: copies of requests to a model that is tried out, whose answers are compared, measured and dropped."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from kvarn.admission.demand import BATCH
from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.observer import AnswerListener, Observer
from kvarn.answers.record import ChosenModel, Deferred, RequestRecord
from kvarn.answers.turn import Deltas, Turn
from kvarn.clock import SYSTEM_CLOCK, Clock
from kvarn.config.routes import ShadowConfig
from kvarn.observe.model_choice import ModelChoiceMetrics
from kvarn.routing.model_choice import is_shadowed

if TYPE_CHECKING:
    from kvarn.answers.question import Question

_MAX_CHARS = 65_536
_LONGEST_S = 600.0

_log = logging.getLogger(__name__)


class AnswerRun(Protocol):
    @property
    def deltas(self) -> Deltas: ...


@dataclass(slots=True)
class ComparedAnswer:
    """The first choice of an answer, as far as it is compared."""

    clock: Clock
    began: float
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    first_s: float | None = None  # seconds from its beginning to the first token
    total_s: float = 0.0
    finish_reason: str | None = None

    def take(self, delta: ChoiceDelta) -> None:
        now = self.clock.now()
        self.first_s = now - self.began if self.first_s is None else self.first_s
        self.total_s = now - self.began
        if delta.index == 0:
            self.finish_reason = delta.finish_reason or self.finish_reason
            self.token_ids += delta.token_ids
            if len(self.text) < _MAX_CHARS:
                self.text = (self.text + delta.written)[:_MAX_CHARS]


@dataclass(frozen=True, slots=True)
class ShadowResult:
    route: str
    model: str  # model that made the copy
    answer: ComparedAnswer
    copy: ComparedAnswer
    agreement: float
    """Part of the longer text that both begin with; 1: they are the same."""
    record_id: str
    """Id of the request that was copied."""


class Shadows(Observer):
    """The copies of one gateway process: an observer that asks again once an answer has ended. `on_failure` is given
    the route, the model that should have made the copy, and why."""

    def __init__(
        self,
        metrics: ModelChoiceMetrics,
        on_result: Callable[[ShadowResult], None] = lambda result: None,
        on_failure: Callable[[str, str, Exception], None] = lambda route, model, error: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.on_result = on_result
        self.on_failure = on_failure
        self.clock = clock
        self.ask: Callable[[RequestRecord, Question[Any, AnswerRun]], Awaitable[AnswerRun]]
        """Begins the answer to a copy, which waits for idle capacity, and is neither limited nor paid. Set once."""
        self._metrics = metrics
        self._running: dict[str, set[asyncio.Task[None]]] = {}

    def needs_seed(self, record: RequestRecord) -> bool:
        """Whether a copy is made, which has the same seed."""
        return _shadow_of(record) is not None

    def listen(self, turn: Turn, question: Question[Any, Any]) -> AnswerListener | None:
        record, shadow = turn.record, None if turn.answer else _shadow_of(turn.record)
        return None if shadow is None or record.choice.degraded_from else _Copied(self, record, shadow, question)

    async def stop(self) -> None:
        tasks = [task for tasks in self._running.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def copy(
        self, record: RequestRecord, shadow: ShadowConfig, heard: ComparedAnswer, question: Question[Any, AnswerRun]
    ) -> None:
        """Ask a question again, of the model that is tried out."""
        route = record.choice.route
        assert route is not None, "a copy is made for a route"
        running = self._running.setdefault(route.name, set())
        if len(running) >= shadow.max_in_flight:
            self._metrics.shadows.labels(route.name, shadow.model, "dropped").inc()
            return
        own = RequestRecord(
            f"shadow-{record.request_id}",
            endpoint=record.endpoint,
            principal=dataclasses.replace(record.principal, log_prompts=False),
            body_bytes=record.body_bytes,
            deferred=Deferred(BATCH),
            choice=ChosenModel(route=route, target=shadow.model),
        )
        task = asyncio.create_task(self._run(own, record.id, shadow.model, heard, question.copy_for(route.name)))
        running.add(task)
        task.add_done_callback(running.discard)

    async def _run(
        self, own: RequestRecord, copied: str, model: str, heard: ComparedAnswer, question: Question[Any, AnswerRun]
    ) -> None:
        assert own.choice.route is not None
        route, copy, outcome = own.choice.route.name, ComparedAnswer(self.clock, self.clock.now()), "failed"
        try:
            async with asyncio.timeout(_LONGEST_S), aclosing((await self.ask(own, question)).deltas) as deltas:
                async for delta in deltas:
                    copy.take(delta)
            agreement = agreement_of(heard.text, copy.text)
            outcome = "same" if heard.text == copy.text and heard.finish_reason == copy.finish_reason else "different"
            self._metrics.shadow_agreement.labels(route, model).observe(agreement)
            for name, answer in (("answer", heard), ("copy", copy)):
                self._metrics.shadow_seconds.labels(route, model, name, "first_token").observe(answer.first_s or 0.0)
                self._metrics.shadow_seconds.labels(route, model, name, "total").observe(answer.total_s)
            self.on_result(ShadowResult(route, model, heard, copy, agreement, copied))
        except Exception as error:
            _log.info("the copy of a request failed: %s", error, extra={"model": model, "request": own.request_id})
            self.on_failure(route, model, error)
        finally:
            self._metrics.shadows.labels(route, model, outcome).inc()
            await own.close()


class _Copied(ComparedAnswer):
    """Hears the answer of a request that is copied."""

    def __init__(
        self, shadows: Shadows, record: RequestRecord, shadow: ShadowConfig, question: Question[Any, AnswerRun]
    ) -> None:
        super().__init__(shadows.clock, record.timeline.received_s)
        self._copy = partial(shadows.copy, record, shadow, self, question)

    def end(self, error: BaseException | None) -> None:
        """Copy the request, unless its reader has left."""
        if error is None:
            self._copy()


def _shadow_of(record: RequestRecord) -> ShadowConfig | None:
    """The model that is tried out with a copy of a request; None: with none."""
    route = record.choice.route
    if route is None or record.deferred is not None or not is_shadowed(route, record.id):
        return None
    return route.shadow


def agreement_of(first: str, second: str) -> float:
    """Part of the longer text that both begin with; 1 where both are empty."""
    longest, shortest = max(len(first), len(second)), min(len(first), len(second))
    same = next((at for at in range(shortest) if first[at] != second[at]), shortest)
    return same / longest if longest else 1.0
