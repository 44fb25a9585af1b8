"""An explanation, as the console and the command line show it. Times are seconds since the request's headers came."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Stage(StrEnum):
    """Kind of a part; each has one colour everywhere."""

    CLIENT = "client"  # sending the request, reading the answer
    ADMISSION = "admission"  # authentication, limits, admission, choice of a replica
    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    TRANSFER = "transfer"  # KV blocks or an adapter are fetched, network to an engine, tools that the platform runs
    TEXT = "text"  # templates, tokens, text, moderation
    UNEXPLAINED = "unexplained"


class CauseCode(StrEnum):
    """Why a request took long; the whole list."""

    CLIENT_SEND = "client slow to send"
    LIMIT = "limit"
    ADMISSION = "admission"
    NO_REPLICA = "no replica"
    COLD_MODEL = "cold model"
    QUEUE_SLOT = "queue: slot"
    QUEUE_BUDGET = "queue: token budget"
    QUEUE_LATENCY = "queue: latency targets of others"
    QUEUE_BLOCKS = "queue: KV blocks"
    QUEUE_PRIORITY = "queue: priority"
    QUEUE_ADAPTER = "queue: adapter"
    QUEUE_TIER = "queue: tier"
    QUEUE_GRAMMAR = "queue: grammar"
    LONG_PROMPT = "long prompt"
    SHARED_STEPS = "shared steps"
    SLOW_STEPS = "slow steps"  # slower than the step-time model expects: the machine was busy or stopped
    PREEMPTED = "preempted"
    FAILOVER = "failover"
    REJECTED_PROPOSALS = "rejected proposals"
    PREPARE = "prepare"  # parse the body, render the template, tokenize
    MODERATION = "moderation"
    TOOLS = "tools"  # tools that the platform ran for it
    CLIENT_READ = "client slow to read"
    OWN_WORK = "own work"  # nothing avoidable


class TokenCause(StrEnum):
    """Why a token came when it did."""

    OWN = "own step"
    PROMPT = "own prompt"
    SHARED = "shared with a prompt"
    PREEMPTED = "preempted"
    ACCEPTED = "proposal accepted"
    FAILOVER = "failover"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a request. The parts of a list follow one another without a gap and sum to what they are parts of."""

    name: str
    stage: Stage
    begin_s: float
    end_s: float
    detail: str = ""
    """A few words: `3 chunks, 512 + 512 + 180`."""
    parts: list[Part] = []


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    code: CauseCode
    seconds: float
    agent: str = ""
    """Turns, an adapter, a replica: `two 6,200-token prompts of globex`."""
    at_s: float = 0.0


class Counterfactual(msgspec.Struct, frozen=True, kw_only=True):
    """Duration of the request, had one thing been otherwise."""

    change: str
    """`alone`, `replica`, `cached`, ..."""
    text: str
    """`One more replica: 0.9 s.`"""
    total_s: float
    error_s: float
    """Half the width of the band that its total lies in."""


class TokenCell(msgspec.Struct, frozen=True, array_like=True):
    """A token of the first choice, for the ribbon."""

    at_s: float
    seconds: float
    """Since the token before it; of the first one, of the step that gave it."""
    cause: TokenCause


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A part in two requests."""

    name: str
    seconds: float
    other_s: float


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    total_s: float
    sentence: str
    """Its cause in words; `text` has the counterfactuals, too."""
    parts: list[Part]
    cause: Cause
    counterfactuals: list[Counterfactual]
    """At most two changes that one could make, the one that spares most first; then `alone`, where it is known."""
    tokens: list[TokenCell]
    """Empty where the engine's steps are not known."""
    unexplained_s: float
    beside: list[Difference] = []
    """Its parts beside those of a typical request of its shape; empty where none is known."""

    @property
    def text(self) -> str:
        """The sentence and what would have helped."""
        changes = [each.text for each in self.counterfactuals if each.change != "alone"]
        return " ".join([self.sentence, *changes])
