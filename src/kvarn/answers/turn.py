"""A turn: one generation under a request, taken in by stages, counted token by token, settled once it is over."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Literal, Protocol

from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.record import RequestRecord
from kvarn.answers.timeline import RequestTimeline
from kvarn.catalog.models import BuiltInModel, ReadyModel
from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.platform import SloConfig
from kvarn.response_cache.questions import AskedQuestion
from kvarn.routing.candidate import RouteRequest
from kvarn.routing.router import ReplicaChoice
from kvarn.store.ids import new_id
from kvarn.store.owner import Principal
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.completions import CompletionRequest
from kvarn.wire.openai.usage import Usage, usage
from kvarn.wire.sampling import SamplingParams

Moderated = tuple[str, Callable[[], Iterable[str]]]  # a field of a request, and its texts for moderation
Deltas = AsyncGenerator[ChoiceDelta, None]  # an answer while it is written: what is new of its choices


class Outcome(StrEnum):
    FINISHED = "finished"
    ABORTED = "aborted"  # the client left, or the server went down, before the end of the answer
    FAILED = "failed"  # the platform refused or lost it after it was taken


@dataclass(slots=True)
class TokenUsage:
    """Tokens of one turn so far, over all its prompts and choices."""

    pending: int = 1  # prompts whose answers have not ended
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0  # part of the completion's
    failed: bool = False
    refused: bool = False  # the engine did not take it, or gave it up
    finish_reasons: list[str] = field(default_factory=list)  # of the choices that have ended, in the order of that
    first_token: float | None = None  # monotonic seconds
    timeline: RequestTimeline | None = None  # gets the event of the first token
    on_change: Callable[[TokenUsage], None] | None = None
    """Called after each change of the counts, before the client hears of it."""

    @property
    def did_work(self) -> bool:
        """Whether the engine got it, and did not refuse at once."""
        return self.prompt_tokens > 0 and (not self.refused or self.completion_tokens > 0)

    def as_openai(self) -> Usage:
        return usage(self.prompt_tokens, self.completion_tokens, self.cached_tokens, self.reasoning_tokens)

    def count(self, *, prompt: int = 0, cached: int = 0, completion: int = 0, reasoning: int = 0) -> None:
        if completion and self.first_token is None:
            self.first_token = SYSTEM_CLOCK.now() if self.timeline is None else self.timeline.mark("first_token")
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        self.completion_tokens += completion
        self.reasoning_tokens += reasoning
        if self.on_change is not None:
            self.on_change(self)


@dataclass(frozen=True, slots=True)
class AnswerIdentity:
    """Everything in a request that changes its answer, beside the model and the tokens of a chat."""

    request: ChatCompletionRequest | CompletionRequest
    samplings: Sequence[SamplingParams] = ()  # of its prompts; none where another server draws
    context: Sequence[int] = ()  # tokens that stand before those of a chat


@dataclass(slots=True)
class CacheUse:
    key: bytes
    ttl_s: float = 0.0  # seconds that the answer is kept; 0: it is not
    hit: Literal["exact", "semantic"] | None = None  # the cache that has the answer; None: a model is asked
    asked: AskedQuestion | None = None  # None: it is not compared with others
    similarity: float = 1.0  # of the question of a semantic hit
    began_s: float = field(default_factory=SYSTEM_CLOCK.now)  # monotonic seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A request's prompt and bounds for one model, before it is taken in."""

    model: ReadyModel | BuiltInModel
    tokens: int  # over all its prompts; counted, or estimated where another server tokenizes them
    token_ids: Sequence[int] = ()
    """The prompt, of several the longest: what of it a replica has cached is found by its tokens. Empty: not known."""
    cache_salt: str | None = None  # the client's; see `salt_of`
    max_output_tokens: int = 0  # the most it may write, over all choices
    output_bounded: bool = True
    """The client set that bound, or there is no output; otherwise it is only what the context has room for."""
    prompts: int = 1
    sequences: int = 1  # answers it asks for, over all its prompts
    priority: int = 0  # the client's wish
    service_tier: str | None = None  # the client's wish in OpenAI's words


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedPrompt(Prompt):
    """A prompt whose answer is written delta by delta."""

    generate: Callable[[Turn], Deltas]
    identity: AnswerIdentity
    moderated: Sequence[Moderated]
    logged: Callable[[], dict[str, Any]]  # the prompt as the log of prompts keeps it


@dataclass(slots=True, kw_only=True)
class Turn:
    """One generation: what it asks of a model, and what it has had."""

    id: str = field(default_factory=partial(new_id, "use_"))
    """Id of its usage event: `use_` and `engine_id`, so that the id of an answer leads to it."""
    engine_id: str = ""  # the engine's id of it; those of several prompts are made of it
    record: RequestRecord
    model: str
    model_version: str = ""  # fingerprint of the checkpoint
    adapter: str = ""
    replica: str = ""  # the copy of the model that answers
    prompt: Prompt | None = None
    route_request: RouteRequest | None = None  # the question to the router; None where the gateway answers by itself
    replica_choice: ReplicaChoice | None = None  # the replica that was chosen, while the turn is its load
    prompt_tokens: int
    max_output_tokens: int
    output_bounded: bool = True
    priority: int = 0  # tier in the engine; lower runs first, 10 is batch
    service_tier: str = "default"  # OpenAI's name of that tier
    sequences: int = 1
    slo: SloConfig | None = None  # its latency targets in the engine; None: it has none
    usage: TokenUsage = field(default_factory=TokenUsage)
    caching: CacheUse | None = None  # None: the response cache has no part in it
    answer: Deltas | None = None  # the answer of a stage that had it; None: a model generates
    closing: ExitStack = field(default_factory=ExitStack)
    """Settles the stages that took it, last one first; they read `outcome` and `usage`."""

    def go_to(self, choice: ReplicaChoice) -> None:
        """Make it this replica's load, and no other's any more."""
        self.settle_choice()
        self.replica, self.replica_choice = choice.replica, choice

    def settle_choice(self) -> None:
        """Count it as the load of its replica no more."""
        if self.replica_choice is not None:
            self.replica_choice.end()

    def give_up(self) -> None:
        """Settle it as failed: it could not begin."""
        self.usage.failed = True
        try:
            self.closing.close()
        finally:
            self.release()

    def release(self) -> None:
        """Drop the prompt and the answer; the usage stays. Turn and record refer to each other, so what they hold would
        stay in memory until the next garbage collection."""
        self.prompt = self.answer = self.route_request = None

    @property
    def outcome(self) -> Outcome:
        if self.usage.failed:
            return Outcome.FAILED
        return Outcome.ABORTED if self.usage.pending else Outcome.FINISHED


class DegradedError(Exception):
    """A stage will not take a turn for this model, and names the one that shall answer instead."""

    def __init__(self, model: str) -> None:
        super().__init__(f"{model} answers instead")
        self.model = model


class Stage(Protocol):
    """One step of taking a turn in: a budget, a limit, admission, the ledger."""

    name: str

    async def enter(self, turn: Turn) -> Deltas | None:
        """Take the turn in, refuse it, or answer it. A stage that takes it says in `turn.closing` how it is settled.

        Returns:
            The whole answer, where the stage has one: no later stage sees the turn, and no model is asked.

        Raises:
            ApiError: The turn is refused. This stage holds nothing of it.
            DegradedError: Another model shall answer.
        """
        ...


def salt_of(principal: Principal, cache_salt: str | None) -> str:
    """The salt of cached prompts: a secret one of the tenant's, then the client's."""
    return f"{principal.cache_salt}/{cache_salt or ''}"
