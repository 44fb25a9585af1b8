"""An answer that may be written by several replicas, one after the other: what has come of it, which request asks for
the rest, and when it is given up. Pure, on times that are passed in; `catalog/failover.py` waits and sends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import msgspec

from kvarn.config.replica import FailoverConfig
from kvarn.routing.candidate import RouteRequest
from kvarn.routing.router import ReplicaChoice
from kvarn.wire.messages import RefusalReason, Submit, TokenDelta


class ResumableAnswer:
    """One request, from its first replica to its end. `attempt` is what the replica of now is sent. `config`: None: the
    answer ends with its replica."""

    def __init__(self, submit: Submit, config: FailoverConfig | None) -> None:
        self.attempt = submit
        self.moves = 0
        self.num_tokens = 0
        """Tokens that have come, of all choices."""
        self.lost: list[str] = []
        """Replicas that were lost since the last token: others go before them."""
        self.waits_until: float | None = None
        """While no replica has it: when it is given up."""
        self._submit = submit
        self._config = config
        self._tokens: dict[int, list[int]] = {index: [] for index in submit.choices}
        """Tokens of the choices that have not ended."""
        self._told = False
        """Whether what is told once has come: cached tokens, log-probabilities of the prompt."""
        self._known = 0
        """Tokens that had come before the replica of now."""
        self._lost_at: float | None = None

    def end_pause(self, now: float) -> float | None:
        """Note that a delta has come; returns the seconds since a loss before it, None where there was none."""
        lost_at, self._lost_at = self._lost_at, None
        return None if lost_at is None else now - lost_at

    def take(self, delta: TokenDelta) -> TokenDelta:
        """Note a delta; returns what is new in it."""
        if self._told and delta.cached_tokens:
            delta = msgspec.structs.replace(delta, cached_tokens=0)
        self._told = True
        self.num_tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            self._tokens.pop(delta.index, None)
        elif delta.index in self._tokens:
            self._tokens[delta.index] += delta.token_ids
        return delta

    def lose(self, replica: str, refused: RefusalReason | None, now: float) -> bool:
        """Note that a replica is lost, or has refused the request; returns whether another may go on."""
        if self._config is None:
            return False
        self._lost_at = now if self._lost_at is None else self._lost_at
        if self.num_tokens > self._known:
            self.lost = []
        self._known = self.num_tokens
        self.lost.append(replica)
        self.waits_until = now + self._config.max_wait_s
        return may_resume(refused, len(self.lost), self._config)

    def move(self) -> Submit:
        """Make the request for the rest, for another engine. Each time it has another id: what is still under way from
        an engine that was lost is taken for no answer to it. It is neither put behind others for the time of the loss
        nor refused for their load."""
        self.moves += 1
        self.waits_until = None
        request_id = f"{self._submit.request_id}~{self.moves}"
        rest = msgspec.structs.replace(self._submit, request_id=request_id, goes_on=True, ttft_left_s=None)
        if self._told:
            sampling = msgspec.structs.replace(self._submit.sampling, prompt_logprobs=None)
            tokens = [self._tokens.get(index) for index in range(sampling.n)]
            rest = msgspec.structs.replace(rest, sampling=sampling, resume_token_ids=tokens)
        self.attempt = rest
        return rest


def may_resume(refused: RefusalReason | None, losses: int, config: FailoverConfig) -> bool:
    """Whether another replica may have a request after an error: no other engine would take what one has refused, but
    for draining; and it may itself be what ends them. `losses`: of engines, since it last got on."""
    return refused in (None, RefusalReason.DRAINING) and losses <= config.max_losses


def choose_other(
    choose: Callable[[RouteRequest], ReplicaChoice | None], route: RouteRequest, lost: Sequence[str]
) -> ReplicaChoice | None:
    """Another replica than those that were lost, or else one of them that is back; None: none is ready."""
    return choose(dataclasses.replace(route, excluded=lost)) or choose(route)
