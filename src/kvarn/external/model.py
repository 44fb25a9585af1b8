"""The external replicas of one model: which of them answers, and which next where one fails."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar

import httpx

from kvarn.answers.turn import Turn
from kvarn.catalog.models import ReadyModel, ServedModel
from kvarn.catalog.timeouts import StageTimeoutError, timeouts_of, within_timeouts
from kvarn.clock import SYSTEM_CLOCK
from kvarn.external.answer import AnswerPart
from kvarn.external.errors import ExternalFailedError, ExternalRefusedError
from kvarn.external.replica import ExternalReplica, make_replicas
from kvarn.jobs.periodic import Periodic
from kvarn.observe.external import ExternalMetrics
from kvarn.replica.client.protocol import ReplicaState
from kvarn.routing.breaker import CircuitBreaker, Permit, breaker_rules
from kvarn.routing.servers import AttemptOutcome, ServerAttempts, Servers
from kvarn.routing.timeouts import TimeoutStage
from kvarn.wire.messages import ModelCard
from kvarn.wire.openai.errors import ApiError

ResultT = TypeVar("ResultT")

_BYTES_PER_TOKEN = 4

_log = logging.getLogger(__name__)


class ExternalModel:
    """Sends requests to the external replicas of a model. Belongs to one event loop. Prompts that begin alike go to the
    same replica, which has probably cached their beginning, unless it has much more to do than the others. Replicas
    that fail are left alone for a while. A failure before the first token is sent again, to another replica where there
    is one, as far as the retry budget allows."""

    def __init__(
        self, served: ServedModel, metrics: ExternalMetrics, clock: Callable[[], float] = SYSTEM_CLOCK.now
    ) -> None:
        external = served.config.external
        assert external is not None
        self.config = external
        self.served = served
        self.metrics = metrics
        self._clock = clock
        self._timeouts = timeouts_of(served.config.timeouts, external=True)
        rules = breaker_rules(served.config.breaker)
        self._servers = Servers(rules, external.retries, external.max_concurrency, self._add_breaker)

    @property
    def replicas(self) -> Mapping[str, ExternalReplica]:
        replicas = self.served.replicas.items()
        return {name: each for name, each in replicas if isinstance(each, ExternalReplica)}

    def count_tokens(self, text: str) -> int:
        """Tokens of a text: counted where the model's tokenizer is configured, else estimated from its length."""
        if self.served.text is not None:
            return len(self.served.text.tokenizer.encode(text, add_special_tokens=False))
        return math.ceil(len(text.encode()) / _BYTES_PER_TOKEN)

    def picked(self, model: ReadyModel, key: bytes) -> ReadyModel:
        """The model with the replica that a prompt with this beginning would go to now. Raises `ApiError` 503, or
        `ExternalFailedError` where none takes requests at the moment."""
        order = self._servers.order(key, self.in_flight(), self._clock())
        if not order:
            raise self.why_none()
        return replace(model, replica_name=order[0])

    def output_bound(self, card: ModelCard, prompt_tokens: int, given: int | None) -> tuple[int, int | None]:
        """Tokens that an answer has at most, and the bound that is sent to the server where the request has none."""
        if given is not None:
            return given, None
        if card.max_context_length:
            return max(1, card.max_context_length - prompt_tokens), None
        return self.config.max_output_tokens, self.config.max_output_tokens

    def answer(self, key: bytes, path: str, body: dict[str, Any], turn: Turn) -> AsyncGenerator[AnswerPart, None]:
        """The parts of an answer, of whichever replica gives one; `turn` and the answer's headers name it. `key` is the
        beginning of the prompt. Raises `ApiError` 503 where none takes requests, `ExternalRefusedError`,
        `ExternalFailedError` of the last replica tried or in mid-answer, `StageTimeoutError`."""
        trace = turn.record.timeline.trace_headers
        return self._tried(key, turn, lambda replica: replica.answer(path, body, trace), has_text)

    async def ask(self, key: bytes, turn: Turn, send: Callable[[ExternalReplica], Awaitable[ResultT]]) -> ResultT:
        """A replica's answer to a request that is not streamed. Raises as `answer` does."""

        async def once(replica: ExternalReplica) -> AsyncGenerator[ResultT, None]:
            yield await send(replica)

        async with aclosing(self._tried(key, turn, once, lambda _: True)) as results:
            (result,) = [each async for each in results]
        return result

    async def _tried(
        self,
        key: bytes,
        turn: Turn,
        send: Callable[[ExternalReplica], AsyncGenerator[ResultT, None]],
        is_part: Callable[[ResultT], bool],
    ) -> AsyncGenerator[ResultT, None]:
        """Ask replicas, one after another, for as long as none has sent a part; gives what one sends."""
        attempts = _Attempts(self, key, turn)
        while True:
            name, permit = attempts.next()
            begun = False
            try:
                timed = within_timeouts(self._connected(send(self.replicas[name])), self._timeouts, is_part)
                async with aclosing(timed) as parts:
                    async for part in parts:
                        begun = begun or is_part(part)
                        yield part
            except BaseException as error:
                self.ended(name, permit, error)
                if not isinstance(error, Exception):
                    raise
                attempts.check(error, again=not begun)
            else:
                self.ended(name, permit, None)
                return

    def probes(self) -> list[Periodic]:
        every_s, what = self.config.probe_interval_s, f"probes of the servers of {self.served.name}"
        return [Periodic(what, replica.probe, every_s) for replica in self.replicas.values()]

    async def close(self) -> None:
        await asyncio.gather(*[replica.aclose() for replica in self.replicas.values()])

    async def _connected(self, sent: AsyncGenerator[ResultT, None]) -> AsyncGenerator[ResultT, None]:
        try:
            async with aclosing(sent) as parts:
                async for part in parts:
                    yield part
        except httpx.ConnectTimeout as error:
            raise StageTimeoutError(TimeoutStage.CONNECT, self._timeouts.connect_s or 0.0) from error

    # Which replica --------------------------------------------------------------------------------------------------

    def begin(self, key: bytes) -> ServerAttempts:
        """A request came, whose prompt begins so."""
        return self._servers.begin(key, self._clock())

    def in_flight(self) -> dict[str, int]:
        """Requests that each replica that is ready has."""
        replicas = self.replicas.items()
        return {name: each.in_flight for name, each in replicas if each.state is ReplicaState.READY}

    def next(self, tries: ServerAttempts) -> tuple[str, Permit] | None:
        """The replica to try next, and its breaker's permit."""
        return tries.next(self.in_flight(), self._clock())

    def why_none(self) -> ApiError | ExternalFailedError:
        now, ready = self._clock(), self.served.replicas.ready
        if not ready:
            return self.served.not_ready()
        have_failed = self._servers.have_failed(ready, now)
        why = "each has failed too often lately" if have_failed else "each has as many requests as it takes"
        retry_after_s = self._servers.retry_after_s(ready, now)
        return ExternalFailedError(why, status=None if have_failed else 503, retry_after_s=retry_after_s)

    def ended(self, name: str, permit: Permit, error: BaseException | None) -> None:
        """A try is over."""
        outcome = outcome_of(error)
        retry_after_s = error.retry_after_s if isinstance(error, ExternalFailedError) else None
        self._servers.ended(name, permit, outcome, self._clock(), retry_after_s)
        if outcome in (AttemptOutcome.FAILED, AttemptOutcome.TIMEOUT):
            _log.warning("external replica failed: %s", error, extra={"model": self.served.name, "replica": name})
        self.metrics.requests.labels(self.served.name, name, outcome.value).inc()

    def may_go_on(self, tries: ServerAttempts, error: Exception) -> bool:
        """Whether another try is allowed after an error; it is counted then."""
        connected = isinstance(error, ExternalFailedError) and error.status is not None
        allowed = tries.may_go_on(outcome_of(error), self.in_flight(), self._clock(), connected=connected)
        if allowed:
            self.metrics.retries.labels(self.served.name).inc()
        return allowed

    def _add_breaker(self, name: str, breaker: CircuitBreaker) -> None:
        self.metrics.add_breaker(self.served.name, name, lambda: breaker.state(self._clock()))


def outcome_of(error: BaseException | None) -> AttemptOutcome:
    if error is None:
        return AttemptOutcome.ANSWERED
    if isinstance(error, ExternalFailedError):
        return AttemptOutcome.BUSY if error.is_busy else AttemptOutcome.FAILED
    if isinstance(error, StageTimeoutError):
        return AttemptOutcome.TIMEOUT
    return AttemptOutcome.REFUSED if isinstance(error, ExternalRefusedError) else AttemptOutcome.CANCELLED


def connect(served: ServedModel, metrics: ExternalMetrics) -> ExternalModel:
    """Give a model its external replicas; each is ready once a probe has found it so."""
    for replica in make_replicas(served.config):
        served.replicas.add(replica.name, replica)
    return ExternalModel(served, metrics)


class _Attempts:
    def __init__(self, model: ExternalModel, key: bytes, turn: Turn) -> None:
        self._model = model
        self._turn = turn
        self._tries = model.begin(key)
        self._error: Exception | None = None

    def next(self) -> tuple[str, Permit]:
        """The replica to try, and its breaker's permit. Raises `ApiError` where none takes requests, and the error of
        the try before where no replica is left."""
        found = self._model.next(self._tries)
        if found is None:
            raise self._error or self._model.why_none()
        self._turn.replica = found[0]
        self._turn.record.reply.headers |= {"x-kvarn-replica": found[0], "x-kvarn-resumable": "approximate"}
        return found

    def check(self, error: Exception, *, again: bool) -> None:
        """Raise the error of a try, unless another one is allowed."""
        self._error = error
        if not again or not self._model.may_go_on(self._tries, error):
            raise error


def has_text(part: AnswerPart) -> bool:
    """Whether a part has anything of the answer: a stream's first part is often a role only."""
    for choice in part.choices:
        message = choice.delta or choice.message
        if choice.text or choice.finish_reason is not None:
            return True
        if message is not None and any(
            (message.content, message.reasoning, message.reasoning_content, message.refusal, message.tool_calls)
        ):
            return True
    return False
