"""Tokens that masks leave no choice about: computed together with those before them, drawn without a look at logits."""

from __future__ import annotations

from kvarn.engine.memory.kv_cache_manager import KVCacheManager
from kvarn.engine.step import StepBuilder


def add_forced(step: StepBuilder, memory: KVCacheManager) -> None:
    """Add the forced tokens of a step's rows, in the budget and the free memory that nobody else takes in it.

    The draws are the same without: at each of these positions the mask allows one token. Where log-probabilities are
    asked for they are drawn one by one, since those of each position are needed.
    """
    for sequence in [each for each in step.rows if each.request.mask is not None]:
        request, end = sequence.request, sequence.num_computed_tokens + step.rows[sequence]
        limit = min(step.tokens_left, request.max_length - end - 1)
        waits = end != sequence.num_tokens or sequence.num_pending
        if request.mask is None or waits or limit <= 0 or request.sampling.logprobs is not None:
            continue
        if not memory.can_extend(sequence, end + 1):
            continue
        forced = request.mask.forced(sequence.index, sequence.tokens[sequence.num_prompt :])[:limit]
        if forced and memory.can_extend(sequence, end + len(forced)):
            memory.reserve(sequence, end + len(forced), [])
            step.propose(sequence, forced, is_forced=True)
