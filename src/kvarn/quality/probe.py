"""A probe: a replica answers a golden prompt, greedily and with log-probabilities."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvarn.quality.golden import GoldenPrompt
from kvarn.replica.client.protocol import ReplicaClient
from kvarn.wire.messages import PositionLogprobs, Submit, TokenDelta
from kvarn.wire.sampling import SamplingParams

TENANT = "kvarn:quality"
"""The platform itself: its questions are no usage of any tenant."""
UNCACHED_TENANT = "kvarn:quality:uncached"
"""The tenant of prompts that are computed as a whole: its cached blocks are deleted before."""
_PRIORITY = 10
_TOP = 4
"""Most likely tokens whose log-probabilities are compared at each position of the answer."""


class GoldenAnswer(msgspec.Struct, frozen=True, kw_only=True):
    token_ids: tuple[int, ...]
    logprobs: tuple[bytes, ...]
    """Log-probabilities of each token, as `PositionLogprobs` packs them."""
    prompt_logprobs: tuple[bytes, ...] = ()
    """The same for each token of the prompt but the first; empty: cached blocks were used."""
    cached_tokens: int = 0

    @classmethod
    def of(cls, deltas: Iterable[TokenDelta]) -> GoldenAnswer:
        token_ids: list[int] = []
        logprobs: list[bytes] = []
        prompt_logprobs: list[bytes] = []
        cached_tokens = 0
        for delta in deltas:
            token_ids += delta.token_ids
            logprobs += [position.packed for position in delta.logprobs or ()]
            prompt_logprobs += [position.packed for position in delta.prompt_logprobs or () if position is not None]
            cached_tokens += delta.cached_tokens
        return cls(
            token_ids=tuple(token_ids),
            logprobs=tuple(logprobs),
            prompt_logprobs=tuple(prompt_logprobs),
            cached_tokens=cached_tokens,
        )

    def equals(self, other: GoldenAnswer) -> bool:
        prompts = self.prompt_logprobs, other.prompt_logprobs
        return (
            self.token_ids == other.token_ids
            and self.logprobs == other.logprobs
            and (not all(prompts) or prompts[0] == prompts[1])
        )


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    agreement: float
    """Share of the answer's tokens before the first that differs."""
    mean_gap: float
    """Mean of the differences of the log-probabilities of the prompt's tokens and of the answer's equal ones."""
    largest_gap: float  # the largest of them


async def ask(
    client: ReplicaClient, prompt: GoldenPrompt, request_id: str, max_tokens: int, *, adapter: str = "", cached: bool
) -> GoldenAnswer:
    """Have a replica answer a golden prompt. `cached`: use the blocks of the prompt that another probe computed
    earlier. Else the whole prompt is computed, with the log-probabilities of its tokens: what is cached of
    `UNCACHED_TENANT` was deleted before. Raises as `ReplicaClient.generate`."""
    request = golden_request(prompt, request_id, max_tokens, adapter=adapter, cached=cached)
    return GoldenAnswer.of([delta async for delta in client.generate(request)])


def golden_request(
    prompt: GoldenPrompt, request_id: str, max_tokens: int, *, adapter: str = "", cached: bool = False
) -> Submit:
    sampling = SamplingParams(
        seed=0, temperature=0.0, max_tokens=max_tokens, logprobs=_TOP, prompt_logprobs=None if cached else 0
    )
    return Submit(
        request_id=request_id,
        prompt_token_ids=prompt.token_ids,
        sampling=sampling,
        tenant=TENANT if cached else UNCACHED_TENANT,
        priority=_PRIORITY,
        adapter=adapter,
    )


def difference(one: GoldenAnswer, other: GoldenAnswer) -> Difference:
    """The distance between two answers; those of other builds need not be equal."""
    equal = 0
    for token, another in zip(one.token_ids, other.token_ids, strict=False):
        if token != another:
            break
        equal += 1
    pairs = [
        *zip(one.prompt_logprobs, other.prompt_logprobs, strict=False),
        *zip(one.logprobs[:equal], other.logprobs[:equal], strict=False),
    ]
    gaps = [abs(_chosen(first) - _chosen(second)) for first, second in pairs]
    longest = max(len(one.token_ids), len(other.token_ids), 1)
    return Difference(
        agreement=equal / longest,
        mean_gap=sum(gaps) / len(gaps) if gaps else 0.0,
        largest_gap=max(gaps, default=0.0),
    )


def _chosen(packed: bytes) -> float:
    return PositionLogprobs(packed).chosen.logprob
