"""Answers that outlive their replica: a request whose engine is lost goes on with another one, from the tokens that
have come.

An engine draws each token from the request's seed and the token's position alone, and the same logits whatever else is
in the batch. So the one that goes on draws the very tokens that the lost one would have drawn: the client sees a pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from kvarn.catalog.replicas import ReplicaSet
from kvarn.config.replica import FailoverConfig
from kvarn.replica.client.protocol import ReplicaClient, ReplicaLostError, ReportPending, RequestRefusedError
from kvarn.routing.candidate import RouteRequest
from kvarn.routing.router import ReplicaChoice
from kvarn.wire.messages import RefusalReason, Submit, TokenDelta

_log = logging.getLogger("kvarn.gateway")


async def generate_anywhere(
    replicas: ReplicaSet,
    choice: ReplicaChoice,
    submit: Submit,
    config: FailoverConfig,
    report_pending: ReportPending | None = None,
    on_moved: Callable[[str, float], None] = lambda replica, pause_s: None,
) -> AsyncGenerator[TokenDelta, None]:
    """As `ReplicaClient.generate`, beginning with one replica and going on with others.

    Args:
        replicas: Of the model.
        choice: The one that begins. What it counts as load is the caller's to end.
        submit: What is asked.
        config: How often and how long it is tried.
        report_pending: See `ReportPending`.
        on_moved: Hears of each other replica that goes on, when its first token has come: its name, and the seconds
            since the one before it was lost.

    Raises:
        ReplicaLostError: It was lost too often without one more token, or no replica was ready in time.
        RequestRefusedError: The engine refused or gave up the request.
        Exception: What `report_pending` raised.
    """
    journal, attempt, lost = _Journal(submit), submit, list[str]()
    lost_at: float | None = None
    try:
        while True:
            known = journal.num_tokens
            try:
                choice.sent(replicas.clock.now())
                async with aclosing(client_of(replicas, choice.replica).generate(attempt, report_pending)) as deltas:
                    async for delta in deltas:
                        if lost_at is not None:
                            on_moved(choice.replica, replicas.clock.now() - lost_at)
                            lost_at = None
                        yield journal.take(delta)
                return
            except (ReplicaLostError, RequestRefusedError) as error:
                choice.end()
                lost_at = replicas.clock.now() if lost_at is None else lost_at
                lost = [choice.replica] if journal.num_tokens > known else [*lost, choice.replica]
                choice = await _other_replica(replicas, replicas.route_of(submit), error, lost, config)
                attempt = journal.rest()
                extra = {"request": submit.request_id, "replica": choice.replica, "tokens": journal.num_tokens}
                _log.info("a request goes on with another engine process", extra=extra)
    finally:
        if lost:
            choice.end()


async def embed_anywhere(
    replicas: ReplicaSet, choice: ReplicaChoice, request_id: str, inputs: list[list[int]], config: FailoverConfig
) -> list[bytes]:
    """As `ReplicaClient.embed`, beginning with one replica and going on with others. Raises as `generate_anywhere`."""
    lost = list[str]()
    try:
        while True:
            name = f"{request_id}~{len(lost)}" if lost else request_id
            try:
                choice.sent(replicas.clock.now())
                return await client_of(replicas, choice.replica).embed(name, inputs)
            except (ReplicaLostError, RequestRefusedError) as error:
                choice.end()
                lost.append(choice.replica)
                tokens = sum(map(len, inputs))
                choice = await _other_replica(replicas, RouteRequest(tokens), error, lost, config)
    finally:
        if lost:
            choice.end()


async def _other_replica(
    replicas: ReplicaSet,
    route: RouteRequest,
    error: ReplicaLostError | RequestRefusedError,
    lost: list[str],
    config: FailoverConfig,
) -> ReplicaChoice:
    """The replica that goes on after an error; waits while none is ready. `lost`: those that were lost since the
    request last got on. Others go first.

    Raises:
        ReplicaLostError: There have been too many, or none is ready in time: the error itself.
        RequestRefusedError: No other engine may do it either: the error itself.
    """
    is_refused = isinstance(error, RequestRefusedError) and error.reason is not RefusalReason.DRAINING
    if is_refused or len(lost) > config.max_losses:
        raise error
    others = dataclasses.replace(route, excluded=lost)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(config.max_wait_s):
            while replicas:
                if (choice := replicas.choose(others) or replicas.choose(route)) is not None:
                    return choice
                await replicas.changed()
    raise error


def client_of(replicas: ReplicaSet, name: str) -> ReplicaClient:
    """The replica of that name. Raises `ReplicaLostError` where it is gone."""
    client = replicas.get(name)
    if client is None:
        raise ReplicaLostError(f"the replica {name} is gone")
    return client


class _Journal:
    """What has come of a request."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._drawn: dict[int, list[int]] = {index: [] for index in submit.choices}
        """Of the choices that have not ended."""
        self._told = False
        """Whether what is told once has come: cached tokens, log-probabilities of the prompt."""
        self._moves = 0
        self.num_tokens = 0

    def take(self, delta: TokenDelta) -> TokenDelta:
        """Note a delta; returns what is new in it."""
        if self._told and delta.cached_tokens:
            delta = msgspec.structs.replace(delta, cached_tokens=0)
        self._told = True
        self.num_tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            self._drawn.pop(delta.index, None)
        elif delta.index in self._drawn:
            self._drawn[delta.index] += delta.token_ids
        return delta

    def rest(self) -> Submit:
        """What is left to do, for another engine. Each time it has another id: what is still under way from one that
        was lost is taken for no answer to it. It is not put behind others for the time that the loss took."""
        self._moves += 1
        request_id = f"{self._submit.request_id}~{self._moves}"
        rest = msgspec.structs.replace(self._submit, request_id=request_id, ttft_left_s=None)
        if not self._told:
            return rest
        sampling = msgspec.structs.replace(self._submit.sampling, prompt_logprobs=None)
        drawn = [self._drawn.get(index) for index in range(sampling.n)]
        return msgspec.structs.replace(rest, sampling=sampling, resume_token_ids=drawn)
