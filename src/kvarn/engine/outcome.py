"""From one row's result to what the client hears."""

from __future__ import annotations

from kvarn.engine.plan import RowResult
from kvarn.engine.request import Request, Sequence
from kvarn.wire.messages import FinishReason, PositionLogprobs, TokenDelta


def absorb_row(sequence: Sequence, num_tokens: int, result: RowResult) -> TokenDelta | None:
    """Advance a sequence by `num_tokens` computed ones and take the tokens drawn.

    Returns the delta to send: None where there is nothing to tell.
    """
    request, start = sequence.request, sequence.num_computed
    sequence.num_computed = start + num_tokens
    if result.prompt_logprobs is not None:
        _collect_prompt_logprobs(request, start, result.prompt_logprobs)
    first = sequence.index == 0 and len(sequence.tokens) == sequence.num_prompt
    kept = sequence.accept(result.token_ids)
    if not kept:
        if request.sampling.max_tokens > 0 or sequence.num_computed < sequence.num_tokens:
            return None
        sequence.finish_reason = FinishReason.LENGTH
    logprobs = result.logprobs[: len(kept)] if result.logprobs is not None else None
    if first:
        return _first_delta(sequence, kept, logprobs)
    return TokenDelta(
        request_id=request.request_id,
        index=sequence.index,
        token_ids=kept,
        logprobs=logprobs,
        finish_reason=sequence.finish_reason,
    )


def _first_delta(sequence: Sequence, kept: list[int], logprobs: list[PositionLogprobs] | None) -> TokenDelta:
    """The request's first: it carries what is told once."""
    request = sequence.request
    assert request.first_step_s is not None, "a sequence that ran has had its first step"
    return TokenDelta(
        request_id=request.request_id,
        index=sequence.index,
        token_ids=kept,
        logprobs=logprobs,
        prompt_logprobs=request.prompt_logprobs if request.sampling.prompt_logprobs is not None else None,
        finish_reason=sequence.finish_reason,
        cached_tokens=request.cached_tokens,
        queue_s=request.first_step_s - request.arrival_s,
    )


def _collect_prompt_logprobs(request: Request, start: int, entries: list[PositionLogprobs]) -> None:
    """Entry i belongs to prompt position start + 1 + i; positions computed a second time are known already."""
    known = len(request.prompt_logprobs) - (start + 1)
    request.prompt_logprobs.extend(entries[known:])
    request.wants_prompt_logprobs = len(request.prompt_logprobs) < len(request.prompt)
