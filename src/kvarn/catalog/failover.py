"""Answers that outlive their replica: a request whose engine is lost goes on with another one, from the tokens that
have come.

An engine draws each token from the request's seed and the token's position alone, and the same logits whatever else is
in the batch. So the one that goes on draws the very tokens that the lost one would have drawn: the client sees a pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from kvarn.catalog.replicas import ReplicaSet
from kvarn.catalog.resumable_answer import ResumableAnswer, choose_other, may_resume
from kvarn.config.replica import FailoverConfig
from kvarn.replica.client.protocol import ReplicaClient, ReplicaLostError, ReportPending, RequestRefusedError
from kvarn.routing.candidate import RouteRequest
from kvarn.routing.router import ReplicaChoice
from kvarn.wire.messages import RefusalReason, Submit, TokenDelta

_log = logging.getLogger("kvarn.catalog")


class ResumableRequest:
    """A request that goes on with another replica where its own is lost. Call `open` and read its deltas through
    `take`; where that raises `ReplicaLostError` or `RequestRefusedError`, await `move` and begin again with `open`.
    Call `end` last. The load that `choice` counts is the caller's to end. `on_moved` is given each other replica that
    goes on, when its first token has come: its name, and the seconds since the loss."""

    def __init__(
        self,
        replicas: ReplicaSet,
        choice: ReplicaChoice,
        submit: Submit,
        config: FailoverConfig | None,
        report_pending: ReportPending | None = None,
        on_moved: Callable[[str, float], None] = lambda replica, pause_s: None,
    ) -> None:
        self._replicas = replicas
        self._choice = choice
        self._answer = ResumableAnswer(submit, config)
        self._submit = submit
        self._config = config
        self._report_pending = report_pending
        self._on_moved = on_moved

    def open(self) -> AsyncGenerator[TokenDelta, None]:
        """Send the rest of the request to the replica; its deltas. Raises `ReplicaLostError`: it is gone."""
        self._choice.sent(self._replicas.clock.now())
        client = client_of(self._replicas, self._choice.replica)
        return client.generate(self._answer.attempt, self._report_pending)

    def take(self, delta: TokenDelta) -> TokenDelta:
        """Note a delta; returns what is new in it."""
        if (pause_s := self._answer.end_pause(self._replicas.clock.now())) is not None:
            self._on_moved(self._choice.replica, pause_s)
        return self._answer.take(delta)

    async def move(self, error: ReplicaLostError | RequestRefusedError) -> None:
        """Find another replica to go on with. Raises the error itself where too many were lost without one more token,
        none was ready in time, or no other engine may do it either."""
        if self._config is None:
            raise error
        self._choice.end()
        answer = self._answer
        if not answer.lose(self._choice.replica, _refusal_of(error), self._replicas.clock.now()):
            raise error
        route = self._replicas.route_of(self._submit)
        self._choice = await _other_replica(self._replicas, route, error, answer.lost, self._config)
        answer.move()
        extra = {
            "request": self._submit.request_id,
            "replica": self._choice.replica,
            "tokens": answer.num_tokens,
        }
        _log.info("a request goes on with another engine process", extra=extra)

    def end(self) -> None:
        if self._answer.moves:
            self._choice.end()


async def generate_anywhere(request: ResumableRequest) -> AsyncGenerator[TokenDelta, None]:
    """The deltas of a request, of whichever replica. Raises as `ReplicaClient.generate` and `ResumableRequest.move`."""
    try:
        while True:
            try:
                async with aclosing(request.open()) as deltas:
                    async for delta in deltas:
                        yield request.take(delta)
                return
            except (ReplicaLostError, RequestRefusedError) as error:
                await request.move(error)
    finally:
        request.end()


async def embed_anywhere(
    replicas: ReplicaSet, choice: ReplicaChoice, request_id: str, inputs: list[list[int]], config: FailoverConfig
) -> list[bytes]:
    """Embed inputs with one replica, or with others where it is lost. Raises as `generate_anywhere`."""
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
                if not may_resume(_refusal_of(error), len(lost), config):
                    raise
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
    request last got on. Raises the error where none was ready in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(config.max_wait_s):
            while replicas:
                if (choice := choose_other(replicas.choose, route, lost)) is not None:
                    return choice
                await replicas.changed()
    raise error


def _refusal_of(error: ReplicaLostError | RequestRefusedError) -> RefusalReason | None:
    return error.reason if isinstance(error, RequestRefusedError) else None


def client_of(replicas: ReplicaSet, name: str) -> ReplicaClient:
    client = replicas.get(name)
    if client is None:
        raise ReplicaLostError(f"the replica {name} is gone")
    return client
