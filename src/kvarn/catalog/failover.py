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
        self._submit = self._attempt = submit
        self._config = config
        self._report_pending = report_pending
        self._on_moved = on_moved
        self._tokens: dict[int, list[int]] = {index: [] for index in submit.choices}
        """Tokens of the choices that have not ended."""
        self._told = False
        """Whether what is told once has come: cached tokens, log-probabilities of the prompt."""
        self._num_tokens = self._known = 0
        """Tokens that have come, and how many of them before the replica of now."""
        self._moves = 0
        self._lost: list[str] = []  # replicas that were lost since the last token
        self._lost_at: float | None = None

    def open(self) -> AsyncGenerator[TokenDelta, None]:
        """Send the rest of the request to the replica; its deltas. Raises `ReplicaLostError`: it is gone."""
        self._choice.sent(self._replicas.clock.now())
        return client_of(self._replicas, self._choice.replica).generate(self._attempt, self._report_pending)

    def take(self, delta: TokenDelta) -> TokenDelta:
        """Note a delta; returns what is new in it."""
        if self._lost_at is not None:
            self._on_moved(self._choice.replica, self._replicas.clock.now() - self._lost_at)
            self._lost_at = None
        if self._told and delta.cached_tokens:
            delta = msgspec.structs.replace(delta, cached_tokens=0)
        self._told = True
        self._num_tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            self._tokens.pop(delta.index, None)
        elif delta.index in self._tokens:
            self._tokens[delta.index] += delta.token_ids
        return delta

    async def move(self, error: ReplicaLostError | RequestRefusedError) -> None:
        """Find another replica to go on with. Raises the error itself where too many were lost without one more token,
        none was ready in time, or no other engine may do it either."""
        if self._config is None:
            raise error
        self._choice.end()
        self._lost_at = self._replicas.clock.now() if self._lost_at is None else self._lost_at
        if self._num_tokens > self._known:
            self._lost = []
        self._known = self._num_tokens
        self._lost.append(self._choice.replica)
        route = self._replicas.route_of(self._submit)
        self._choice = await _other_replica(self._replicas, route, error, self._lost, self._config)
        self._moves += 1
        self._attempt = self._rest()
        extra = {"request": self._submit.request_id, "replica": self._choice.replica, "tokens": self._num_tokens}
        _log.info("a request goes on with another engine process", extra=extra)

    def end(self) -> None:
        if self._moves:
            self._choice.end()

    def _rest(self) -> Submit:
        """The rest of the request, for another engine. Each time it has another id: what is still under way from an
        engine that was lost is taken for no answer to it. It is not put behind others for the time of the loss."""
        request_id = f"{self._submit.request_id}~{self._moves}"
        rest = msgspec.structs.replace(self._submit, request_id=request_id, ttft_left_s=None)
        if not self._told:
            return rest
        sampling = msgspec.structs.replace(self._submit.sampling, prompt_logprobs=None)
        tokens = [self._tokens.get(index) for index in range(sampling.n)]
        return msgspec.structs.replace(rest, sampling=sampling, resume_token_ids=tokens)


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
    request last got on. Others go first. Raises as `ResumableRequest.move`."""
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
    client = replicas.get(name)
    if client is None:
        raise ReplicaLostError(f"the replica {name} is gone")
    return client
