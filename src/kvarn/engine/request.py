"""A request and its choices, as the scheduler sees them.

A `Request` is what a client sent; a `Sequence` is one of its `n` choices. There is no prefill phase and no decode
phase: a sequence has `tokens` known and `num_computed_tokens` of them in the KV cache, and each step closes some of the
gap. A step that is submitted counts as computed at once; what it will draw counts as `num_pending`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field
from typing import Protocol

from kvarn.engine.memory.prefix_cache import PrefixNode
from kvarn.engine.memory.snapshots import SnapshotRecord
from kvarn.engine.plan import BlockUpdate, KVFetch, RowMasks
from kvarn.engine.proposals.record import GuessRecord
from kvarn.engine.sessions.branch import Branch
from kvarn.engine.tenants import TenantAccount
from kvarn.engine.turn import TurnRecorder
from kvarn.fairness.trees import TreeRequest
from kvarn.wire.block_names import NamedPrompt, PrefixScope
from kvarn.wire.messages import FinishReason, PositionLogprobs, Submit
from kvarn.wire.sampling import SamplingParams, choice_seed


class FetchState:
    """Names of a waiting sequence's blocks beyond the device, and the fetch that brings them near."""

    def __init__(self) -> None:
        self.pending: KVFetch | None = None
        self.reset()

    def reset(self) -> None:
        self.block_names: list[bytes] = []
        """Names of the blocks that may be held beyond the device, from the sequence's first one on."""
        self.tried = False
        self.again_s = 0.0
        """Time to ask for it again, where the connector had no room for it."""
        self.timeout_s = 0.0
        """Seconds that a sequence which could start waits for it: as long as computing the blocks takes."""
        self.until_s: float | None = None
        """End of that time; None before it could start."""


class TokenMask(Protocol):
    """Tokens that a request allows next, by a grammar for example."""

    @property
    def ready(self) -> bool:
        """Whether it can be asked; its request does not start before."""

    @property
    def problem(self) -> str | None:
        """Why the request cannot be answered, or not to its end; it is refused then."""

    def forced(self, index: int, output_token_ids: list[int]) -> list[int]:
        """Tokens that must come next: at each of their positions the mask allows one alone."""

    def pack(self, index: int, output_token_ids: list[int], proposals: list[int]) -> RowMasks:
        """Masks for the token after the output of choice `index`, and for those after each proposal: each allows at
        least one token; behind a proposal that is not allowed itself anything may stand."""


class Request:
    """A client's message, and the state that its choices share."""

    __slots__ = (
        "account",
        "arrival_s",
        "block_names",
        "branch",
        "cached_tokens",
        "first_step_s",
        "first_token_by_s",
        "goes_on",
        "is_late",
        "mask",
        "max_length",
        "num_unfinished",
        "order",
        "priority",
        "prompt",
        "prompt_logprobs",
        "queued_s",
        "request_id",
        "sampling",
        "scope",
        "sequences",
        "session",
        "share",
        "siblings",
        "stop_token_ids",
        "tpot_target_s",
        "turn",
        "wants_prompt_logprobs",
    )

    def __init__(
        self,
        message: Submit,
        account: TenantAccount,
        arrival_s: float,
        order: int,
        max_context_length: int,
        turn: TurnRecorder,
        mask: TokenMask | None = None,
    ) -> None:
        self.request_id = message.request_id
        self.prompt = message.prompt_token_ids
        self.block_names = self.prompt.names if isinstance(self.prompt, NamedPrompt) else None
        """Names of prompt's and answer's blocks, where their tokens are not known (`NamedPrompt`)."""
        self.sampling: SamplingParams = message.sampling
        self.stop_token_ids = frozenset(message.sampling.stop_token_ids)
        self.scope = PrefixScope(message.tenant, message.cache_salt, message.adapter)
        self.session = message.session
        self.goes_on = message.goes_on
        self.branch: Branch | None = None  # the conversation of its session that it goes on with
        self.turn = turn
        self.mask = mask
        self.priority = message.priority
        self.account = account
        self.arrival_s = arrival_s
        self.queued_s = arrival_s
        """Moment as of which it waits in the queue, perhaps another than that of its arrival (`Scheduler.add`)."""
        self.share: TreeRequest | None = None  # its part in what its session tree asks for; None: it is not queued yet
        self.order = order
        """Arrival number: breaks ties, so that the same messages give the same plans."""
        self.first_token_by_s = None if message.ttft_left_s is None else arrival_s + message.ttft_left_s
        """Until when its target for the first token is kept; None where it has none, or has begun elsewhere."""
        self.tpot_target_s = message.tpot_target_s
        self.is_late = False  # it had missed that target before it could start
        self.first_step_s: float | None = None
        """Time at which the first of its tokens was scheduled; None while it has only waited."""
        self.cached_tokens = 0
        self.prompt_logprobs: list[PositionLogprobs | None] = []
        """Collected chunk by chunk; entry p belongs to prompt position p."""
        if message.sampling.prompt_logprobs is not None:
            self.prompt_logprobs.append(None)
        self.wants_prompt_logprobs = 0 < len(self.prompt_logprobs) < len(self.prompt)
        """Whether log-probabilities of some prompt positions are asked for and not collected yet."""
        self.max_length = min(len(self.prompt) + message.sampling.max_tokens, max_context_length)
        """Tokens of prompt and answer together at which a choice ends."""
        self.num_unfinished = len(message.choices)
        resumed = message.resume_token_ids
        choices = [Sequence(self, index, resumed[index] if resumed else ()) for index in message.choices]
        self.sequences = choices[:1]
        """The first choice computes the prompt; the others are forked from it once that is done."""
        self.siblings = choices[1:]  # choices that are still to be forked

    def fork(self) -> list[Sequence]:
        siblings, self.siblings = self.siblings, []
        for sibling in siblings:
            sibling.num_charged = sibling.num_prompt
        self.sequences.extend(siblings)
        return siblings


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of a request: its tokens and where their keys and values are."""

    request: Request
    index: int
    outputs: InitVar[Iterable[int] | None] = ()
    """Tokens drawn elsewhere before."""
    seed: int = field(init=False)
    tokens: list[int] = field(init=False)
    num_prompt: int = field(init=False)
    num_computed_tokens: int = 0
    """Tokens whose keys and values are in the cache once the steps in flight have run; of a preempted sequence, those
    whose blocks were to be stored."""
    num_pending: int = 0
    """Tokens that steps in flight draw, not known yet; where there are proposals, only the first is counted."""
    num_charged: int = 0
    """Prompt tokens the tenant has been charged for; recomputation after preemption is free."""
    blocks: list[int] = field(default_factory=list)
    """Block table: entry i holds positions 16 i to 16 i + 15."""
    nodes: list[PrefixNode] = field(default_factory=list)
    pending_updates: list[BlockUpdate] = field(default_factory=list)
    fetch: FetchState = field(default_factory=FetchState)
    slot: int | None = None
    tier: int = field(init=False)
    """Priority it runs at: its own, or better by ageing in the queue."""
    last_step: int = 0
    blocked_since_s: float | None = None
    """Time at which others first passed it because it did not fit."""
    blocks_wanted: int = 0
    """Blocks it needed at its last look at the prefix cache, in vain."""
    seen_prefix_changes: int = 0
    """`MemoryReserve.prefix_changes` at that look. As long as it is the same, another look is pointless."""
    finish_reason: FinishReason | None = None
    guesses: GuessRecord | None = None
    """Whether guesses of its tokens were right; None where none was asked for."""
    snapshots: SnapshotRecord | None = None

    def __post_init__(self, outputs: Iterable[int] | None) -> None:
        request = self.request
        self.seed = choice_seed(request.sampling.seed, self.index)
        self.tokens = [*request.prompt, *(outputs or ())]
        self.num_prompt = len(request.prompt)
        self.tier = request.priority

    @property
    def leads(self) -> bool:
        return self is self.request.sequences[0]

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output, those that steps in flight draw included."""
        return len(self.tokens) + self.num_pending

    @property
    def num_outputs(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def awaits_result(self) -> bool:
        """Whether all that can be planned is in flight: a mask, and what follows the last token, need its result."""
        if self.num_pending and (self.request.mask is not None or self.num_tokens >= self.request.max_length):
            return True
        return self.num_computed_tokens >= self.num_tokens

    @property
    def account(self) -> TenantAccount:
        return self.request.account

    @property
    def priority(self) -> int:
        return self.request.priority

    @property
    def arrival_s(self) -> float:
        """Moment that the queue goes by."""
        return self.request.queued_s

    @property
    def order(self) -> tuple[int, int]:
        return (self.request.order, self.index)

    @property
    def rank(self) -> tuple[int, float, int, int]:
        """Order in which running sequences keep their memory: smaller stays longer."""
        return (self.tier, self.request.arrival_s, self.request.order, self.index)

    def accept(self, drawn: list[int]) -> list[int]:
        """Append drawn tokens up to the first that ends the answer, which sets `finish_reason`; returns the tokens
        kept."""
        request, tokens = self.request, self.tokens
        for count, token in enumerate(drawn, start=1):
            tokens.append(token)
            if token in request.stop_token_ids and self.num_outputs >= request.sampling.min_tokens:
                self.finish_reason = FinishReason.STOP
            elif len(tokens) >= request.max_length:
                self.finish_reason = FinishReason.LENGTH
            else:
                continue
            return drawn[:count]
        return drawn

    def forget_memory(self) -> None:
        self.num_computed_tokens = 0
        self.num_pending = 0
        self.blocks = []
        self.nodes = []
        self.pending_updates = []
        self.fetch.reset()
