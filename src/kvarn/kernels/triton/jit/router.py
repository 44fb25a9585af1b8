"""The choice of experts: one program a token, all scores in registers."""

import triton
import triton.language as tl


@triton.jit
def route(
    numbers,
    choice_bias,
    shares,
    chosen,
    scale,
    STRIDE: tl.constexpr,
    EXPERTS: tl.constexpr,
    EACH: tl.constexpr,
    SOFTMAX: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUPS_EACH: tl.constexpr,
    BEST_TWO: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    EACH_BLOCK: tl.constexpr,
):
    """See `Operations.route` and `RouterSpec`. numbers [T, EXPERTS]; shares [T, EACH] float32, chosen [T, EACH] int64,
    the best expert first; of equal scores the lowest expert."""
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    real = expert < EXPERTS
    own = tl.load(numbers + token * STRIDE + expert, mask=real, other=float("-inf")).to(tl.float32)
    if SOFTMAX:
        own = tl.exp(own - tl.max(own, 0))
        scores = own / tl.sum(own, 0)
    else:
        scores = 1.0 / (1.0 + tl.exp(-own))
    ranking = scores
    if HAS_BIAS:
        ranking += tl.load(choice_bias + expert, mask=real, other=0.0)
    ranking = tl.where(real, ranking, float("-inf"))
    if GROUPS > 1:
        ranking = _in_best_groups(ranking, expert, EXPERTS // GROUPS, GROUPS, GROUPS_EACH, BEST_TWO, BLOCK)
    number = tl.arange(0, EACH_BLOCK)
    taken = tl.zeros([EACH_BLOCK], tl.float32)
    experts = tl.zeros([EACH_BLOCK], tl.int32)
    for i in range(EACH):
        best = tl.min(tl.where(ranking == tl.max(ranking, 0), expert, BLOCK), 0)
        taken = tl.where(number == i, tl.sum(tl.where(expert == best, scores, 0.0), 0), taken)
        experts = tl.where(number == i, best, experts)
        ranking = tl.where(expert == best, float("-inf"), ranking)
    if RENORMALIZE:
        taken /= tl.sum(taken, 0)
    tl.store(shares + token * EACH + number, taken * scale, mask=number < EACH)
    tl.store(chosen + token * EACH + number, experts.to(tl.int64), mask=number < EACH)


@triton.jit
def _in_best_groups(
    ranking, expert, SIZE: tl.constexpr, GROUPS: tl.constexpr, GROUPS_EACH: tl.constexpr, BEST_TWO: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The ranking of experts of the best groups of SIZE; that of the others is minus infinity."""
    group = expert // SIZE
    score = tl.full([BLOCK], float("-inf"), tl.float32)
    for each in range(GROUPS):
        inside = tl.where(group == each, ranking, float("-inf"))
        best = tl.max(inside, 0)
        if BEST_TWO:
            first = tl.min(tl.where(inside == best, expert, BLOCK), 0)
            best += tl.max(tl.where(expert == first, float("-inf"), inside), 0)
        score = tl.where(group == each, best, score)
    kept = tl.where(group >= 0, float("-inf"), ranking)
    for _ in range(GROUPS_EACH):
        best_group = tl.min(tl.where(score == tl.max(score, 0), group, BLOCK), 0)
        kept = tl.where(group == best_group, ranking, kept)
        score = tl.where(group == best_group, float("-inf"), score)
    return kept
