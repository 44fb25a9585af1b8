"""A request while it is answered, and the work that it begins: taken in by stages, counted, settled once it is over."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from enum import StrEnum

from kvarn.admission.demand import Demand
from kvarn.catalog.client_left import ClientLeft
from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.platform import SloConfig
from kvarn.config.routes import RouteConfig
from kvarn.observe.metrics import UNKNOWN
from kvarn.routing.candidate import RouteRequest
from kvarn.routing.router import ReplicaChoice
from kvarn.store.ids import new_id
from kvarn.store.owner import ANYBODY, Principal
from kvarn.wire.dialect import Dialect
from kvarn.wire.openai.dialect import OPENAI
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

    pending: int = 1
    """Prompts whose answers have not ended."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    """Of the completion's."""
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
        return usage(self.prompt_tokens, self.completion_tokens, self.cached_tokens, self.reasoning_tokens)

    def count(self, *, prompt: int = 0, cached: int = 0, completion: int = 0, reasoning: int = 0) -> None:
        """Add tokens."""
        if completion and self.first_token is None:
            self.first_token = SYSTEM_CLOCK.now()
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        self.completion_tokens += completion
        self.reasoning_tokens += reasoning
        if self.on_change is not None:
            self.on_change(self)


@dataclass(slots=True)
class RequestRecord:
    """One request: set up by the middleware (or by a batch, for each of its lines), filled in on its way."""

    request_id: str
    """Sent back as `x-request-id`, logged, and in the ledger: the client's own where it sent a valid one, else made of
    `id`. Two requests may have the same."""
    id: str = field(default_factory=lambda: new_id(""), kw_only=True)
    """The request's own: the engine's id of it, and what follows the prefix in the id of its answer (`chatcmpl-…`)."""
    began: float = field(default_factory=SYSTEM_CLOCK.now)
    """Monotonic seconds at which its headers reached this machine."""
    received: float = field(default_factory=SYSTEM_CLOCK.now)
    """The same of the last byte of its body: latencies count from here. That of the headers until it is read."""
    model: str = UNKNOWN
    """The configured model it asked for."""
    body_bytes: int = 0
    """Size of the body read."""
    status: int = 0
    """HTTP status sent; 0 before the answer starts."""
    disconnected: bool = False
    """The client left before the end of the answer."""
    endpoint: str = UNKNOWN
    """Path of the operation, such as `/v1/chat/completions`."""
    dialect: Dialect = OPENAI
    """The API whose shapes it is answered in, errors included."""
    principal: Principal = ANYBODY
    """Who it acts for."""
    best_priority: int | None = None
    """Best tier it may have, where it is not the client's to say: 10 for a line of a batch."""
    batch_id: str | None = None
    """The batch whose line it is."""
    client_left: ClientLeft = None
    """Returns once the client has left. May be awaited when the body has been read. For a line of a batch: once the
    batch gives way to another."""
    degraded_from: str | None = None
    """The model it asked for, where another one answers."""
    route: RouteConfig | None = None
    """The route it asked for."""
    chosen_model: str = ""
    """The model that was chosen for it then."""
    session: str = ""
    """The client's session, where it names one."""
    overload_fallbacks: Sequence[str] = ()
    """Models that may answer where the one it asks for would be late."""
    early_demand: Demand | None = None
    """What admission knew of it before it was parsed."""
    early_replica: str = ""
    """The replica that expects it."""
    work: Work | None = None
    """What it has begun."""
    headers: dict[str, str] = field(default_factory=dict)
    """Go into the answer."""
    warnings: list[str] = field(default_factory=list)
    """What of the request is ignored: goes into the answer's headers and into the log."""
    held_bytes: int = 0
    """Memory that it takes; see `HeldBytes`."""
    closing: AsyncExitStack = field(default_factory=AsyncExitStack)
    """What is given back and settled when the answer is over, last one first."""

    async def close(self) -> None:
        """Settle its work and give back what it holds; may be called again."""
        try:
            await self.closing.aclose()
        except Exception:
            _log.exception("request %s could not be settled", self.request_id)


@dataclass(slots=True, kw_only=True)
class Work:
    """What a request asks of a model, and what it has had."""

    id: str = field(default_factory=lambda: new_id("use_"))
    """Of its usage event."""
    record: RequestRecord
    model: str
    model_version: str = ""
    """Fingerprint of the checkpoint."""
    adapter: str = ""
    """Name of the adapter that it answers with."""
    replica: str = ""
    """Which copy of the model answers."""
    route_request: RouteRequest | None = None
    """What it asked of the replicas; None where the gateway answers by itself."""
    replica_choice: ReplicaChoice | None = None
    """The replica that was chosen, while it is its load."""
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
    sequences: int = 1
    """Answers it asks for, over all its prompts."""
    slo: SloConfig | None = None
    """Its latency targets in the engine; None: it has none."""
    usage: TokenUsage = field(default_factory=TokenUsage)
    closing: ExitStack = field(default_factory=ExitStack)
    """How the stages that took it are settled, last one first: `outcome` and `usage` say what came of it."""

    def go_to(self, choice: ReplicaChoice) -> None:
        """It is this replica's load, and no other's any more."""
        self.settle_choice()
        self.replica, self.replica_choice = choice.replica, choice

    def settle_choice(self) -> None:
        """It is no replica's load any more."""
        if self.replica_choice is not None:
            self.replica_choice.end()

    @property
    def principal(self) -> Principal:
        """Who it is done for."""
        return self.record.principal

    @property
    def outcome(self) -> Outcome:
        """What has come of it so far."""
        if self.usage.failed:
            return Outcome.FAILED
        return Outcome.ABORTED if self.usage.pending else Outcome.FINISHED


class DegradedError(Exception):
    """A stage will not take the work for this model, and names the one that shall answer instead."""

    def __init__(self, model: str) -> None:
        super().__init__(f"{model} answers instead")
        self.model = model


Stage = Callable[[Work], Awaitable[None]]
"""Has a say in whether work is taken: a budget, a limit, admission, the ledger. One that takes it says in
`work.closing` how it is settled.

Raises:
    ApiError: The work is refused. Nothing of it is held by this stage.
    DegradedError: Another model shall answer.
"""


def salt_of(principal: Principal, cache_salt: str | None) -> str:
    """The salt of cached prompts: a secret one of the tenant's, then the client's."""
    return f"{principal.cache_salt}/{cache_salt or ''}"
