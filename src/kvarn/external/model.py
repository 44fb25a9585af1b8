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
from kvarn.routing.breaker import BreakerRules, CircuitBreaker, Permit, RetryBudget, RetryRules
from kvarn.routing.policies import order_by_rank
from kvarn.routing.timeouts import TimeoutStage
from kvarn.wire.messages import ModelCard
from kvarn.wire.openai.errors import ApiError

ResultT = TypeVar("ResultT")

_PREFIX_BYTES = 2048
"""Bytes of a prompt that choose the replica which has probably cached its beginning."""
_MAX_TRIES = 3
_BYTES_PER_TOKEN = 4
_BUSY_S = 1.0
"""For which a replica is left alone that says it is busy, and not for how long."""
_LONGEST_BUSY_S = 30.0

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
        self._rules = BreakerRules(**served.config.breaker.model_dump())
        self._breakers: dict[str, CircuitBreaker] = {}
        self._busy_until: dict[str, float] = {}
        retries = external.retries
        self._retries = RetryBudget(RetryRules(retries.share, retries.min_retries, retries.window_s))

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
        order = self.order(key)
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

    def count_request(self) -> None:
        """A request came: the retry budget grows with it."""
        self._retries.request(self._clock())

    def allows_retry(self) -> bool:
        """Whether a request may be sent once more; it is counted then."""
        return self._retries.retry(self._clock())

    def order(self, key: bytes) -> list[str]:
        """The replicas that take requests now, in the order in which they are tried."""
        now, limit = self._clock(), self.config.max_concurrency
        loads = {
            name: replica.in_flight
            for name, replica in self.replicas.items()
            if replica.state is ReplicaState.READY
            and self._breaker(name).allows(now)
            and self._busy_until.get(name, 0.0) <= now
            and (limit is None or replica.in_flight < limit)
        }
        return order_by_rank(key[:_PREFIX_BYTES], loads)

    def why_none(self) -> ApiError | ExternalFailedError:
        now, ready = self._clock(), self.served.replicas.ready
        if not ready:
            return self.served.not_ready()
        waits = [max(self._breaker(name).retry_after_s(now), self._busy_until.get(name, 0.0) - now) for name in ready]
        open_breakers = all(not self._breaker(name).allows(now) for name in ready)
        retry_after_s = max(0.0, min(waits)) or _BUSY_S
        why = "each has failed too often lately" if open_breakers else "each has as many requests as it takes"
        return ExternalFailedError(why, status=None if open_breakers else 503, retry_after_s=retry_after_s)

    def _breaker(self, name: str) -> CircuitBreaker:
        found = self._breakers.get(name)
        if found is None:
            found = self._breakers[name] = CircuitBreaker(self._rules)
            self.metrics.add_breaker(self.served.name, name, lambda: found.state(self._clock()))
        return found

    def admit(self, name: str) -> Permit | None:
        return self._breaker(name).admit(self._clock())

    def ended(self, name: str, permit: Permit, error: BaseException | None) -> None:
        now, breaker = self._clock(), self._breaker(name)
        if isinstance(error, ExternalFailedError) and error.is_busy:
            outcome = "busy"
            breaker.cancelled(permit)
            busy_s = _BUSY_S if error.retry_after_s is None else min(error.retry_after_s, _LONGEST_BUSY_S)
            self._busy_until[name] = now + busy_s
        elif isinstance(error, ExternalFailedError | StageTimeoutError):
            outcome = "timeout" if isinstance(error, StageTimeoutError) else "failed"
            breaker.failed(permit, now)
            _log.warning("external replica failed: %s", error, extra={"model": self.served.name, "replica": name})
        elif error is None or isinstance(error, ExternalRefusedError):
            outcome = "answered" if error is None else "refused"
            breaker.succeeded(permit, now)
        else:
            outcome = "cancelled"
            breaker.cancelled(permit)
        self.metrics.requests.labels(self.served.name, name, outcome).inc()


def connect(served: ServedModel, metrics: ExternalMetrics) -> ExternalModel:
    """Give a model its external replicas; each is ready once a probe has found it so."""
    for replica in make_replicas(served.config):
        served.replicas.add(replica.name, replica)
    return ExternalModel(served, metrics)


class _Attempts:
    def __init__(self, model: ExternalModel, key: bytes, turn: Turn) -> None:
        self._model = model
        self._key = key
        self._turn = turn
        self._tried: list[str] = []
        self._error: Exception | None = None
        model.count_request()

    def next(self) -> tuple[str, Permit]:
        """The replica to try, and its breaker's permit. Raises `ApiError` where none takes requests, and the error of
        the try before where no replica is left."""
        for name in self._candidates():
            permit = self._model.admit(name)
            if permit is not None:
                self._tried.append(name)
                self._turn.replica = name
                self._turn.record.reply.headers |= {"x-kvarn-replica": name, "x-kvarn-resumable": "approximate"}
                return name, permit
        raise self._error or self._model.why_none()

    def check(self, error: Exception, *, again: bool) -> None:
        """Raise the error of a try, unless another one is allowed."""
        model = self._model
        retried = isinstance(error, ExternalFailedError | StageTimeoutError) and again and len(self._tried) < _MAX_TRIES
        self._error = error
        if not retried or not self._candidates() or not model.allows_retry():
            raise error
        model.metrics.retries.labels(model.served.name).inc()

    def _candidates(self) -> list[str]:
        """Replicas not tried yet; once more the same where only the connection failed, which the server may have closed
        as idle."""
        order = self._model.order(self._key)
        fresh = [name for name in order if name not in self._tried]
        if not fresh and isinstance(self._error, ExternalFailedError) and self._error.status is None:
            return [name for name in order if self._tried.count(name) < 2]
        return fresh


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
