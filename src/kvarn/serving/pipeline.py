"""One piece of work: from the moment a request is taken until it is settled and in the ledger.

Everything that has a say in whether a request is taken, or wants to know what came of it, is a stage: scopes, budgets,
limits, admission, the ledger. The stages are entered in order, before the engine gets the request, and settled in the
opposite order, whatever came of the request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from kvarn.admission.demand import Demand
from kvarn.jobs.run_to_completion import run_to_completion
from kvarn.store.ids import new_id
from kvarn.store.owner import Principal
from kvarn.wire.openai.usage import Usage, usage

_log = logging.getLogger("kvarn.gateway")


class Outcome(StrEnum):
    """What came of a piece of work."""

    FINISHED = "finished"
    ABORTED = "aborted"
    """The client left, or the server went down, before the end of the answer."""
    FAILED = "failed"
    """The platform refused or lost it after it was taken."""


@dataclass(slots=True)
class TokenUsage:
    """Tokens of one request so far, over all its prompts and choices."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    pending: int = 0
    """Parts that have not ended."""
    failed: bool = False
    refused: bool = False
    """The engine did not take it, or gave it up."""
    first_token: float | None = None
    """Monotonic seconds."""
    on_change: Callable[[TokenUsage], None] | None = None
    """Called after each change of the counts, before the client hears of it."""

    @property
    def did_work(self) -> bool:
        """Whether the engine got it, and did not refuse at once."""
        return self.prompt_tokens > 0 and (not self.refused or self.completion_tokens > 0)

    def as_openai(self) -> Usage:
        """As OpenAI's usage object."""
        return usage(self.prompt_tokens, self.completion_tokens, self.cached_tokens)

    def count(self, *, prompt: int = 0, cached: int = 0, completion: int = 0) -> None:
        """Add tokens."""
        if completion and self.first_token is None:
            self.first_token = time.monotonic()
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        self.completion_tokens += completion
        if self.on_change is not None:
            self.on_change(self)


@dataclass(slots=True, kw_only=True)
class Work:
    """What a request asks for, and what it has had."""

    id: str = field(default_factory=lambda: new_id("use_"))
    """Of its usage event."""
    request_id: str
    endpoint: str
    """Path of the operation, such as `/v1/chat/completions`."""
    principal: Principal
    model: str
    model_version: str = ""
    """Fingerprint of the checkpoint."""
    replica: str = ""
    """Which copy of the model answers."""
    adapter: str = ""
    prompt_tokens: int
    """Exactly counted."""
    max_output_tokens: int
    """Most it may write, over all choices."""
    output_bounded: bool = True
    """The client set that bound, or there is no output; otherwise it is only what the context has room for."""
    priority: int = 0
    """Tier in the engine; lower runs first, 10 is batch."""
    service_tier: str = "default"
    """OpenAI's name of that tier."""
    batch_id: str | None = None
    """The batch whose line it is."""
    sequences: int = 1
    """Answers it asks for, over all its prompts."""
    received: float
    """Monotonic seconds at which the last byte of the request came."""
    usage: TokenUsage = field(default_factory=TokenUsage)
    headers: dict[str, str] = field(default_factory=dict)
    """Go into the answer, such as `x-ratelimit-remaining-tokens`."""
    client_left: Callable[[], Awaitable[None]] | None = None
    """Returns once nobody waits for the answer any more; None where that cannot be known."""
    degraded_from: str | None = None
    """The model that the request names, where another one answers."""
    early_demand: Demand | None = None
    """What admission knew of it before it was parsed."""
    settlements: list[Settle] = field(default_factory=list)
    """What is done when it is over, last one first."""

    @property
    def outcome(self) -> Outcome:
        """What has come of it so far."""
        if self.usage.failed:
            return Outcome.FAILED
        return Outcome.ABORTED if self.usage.pending else Outcome.FINISHED

    async def close(self) -> None:
        """Settle it. Done to the end even where the caller is cancelled."""
        await run_to_completion(self._settle())

    async def _settle(self) -> None:
        while self.settlements:
            settle = self.settlements.pop()
            try:
                await settle(self)
            except Exception:
                _log.exception("request %s: %r could not be settled", self.request_id, settle)


class DegradedError(Exception):
    """A stage will not take the work for this model, and names the one that shall answer instead."""

    def __init__(self, model: str) -> None:
        super().__init__(f"{model} answers instead")
        self.model = model


Settle = Callable[[Work], Awaitable[None]]
"""What a stage does once when the work is over: `work.outcome` and `work.usage` say how."""


class Stage(Protocol):
    """Has a say in whether work is taken."""

    async def enter(self, work: Work) -> Settle | None:
        """Let the work in. What is returned is called when the work is over.

        Raises:
            ApiError: The work is refused. Nothing of it is held by this stage.
            DegradedError: Another model shall answer.
        """
        ...


class Pipeline:
    """The stages, in the order in which they are entered: those that cost least first, the ledger last."""

    def __init__(self, stages: Sequence[Stage] = ()) -> None:
        self._stages = tuple(stages)

    async def begin(self, work: Work) -> None:
        """Take the work in, or refuse it. `work.close()` must be called once it is over.

        Raises:
            ApiError: A stage refused it; those before it have been settled.
            DegradedError: Another model shall answer; so they have here.
        """
        try:
            for stage in self._stages:
                settle = await stage.enter(work)
                if settle is not None:
                    work.settlements.append(settle)
        except BaseException:
            work.usage.failed = True
            await work.close()
            raise
