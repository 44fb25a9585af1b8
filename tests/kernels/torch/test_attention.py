"""Paged attention against a loop that follows the definition, with poison wherever nothing may be read."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from kvarn.kernels.batch import HeadShape, PagedBatch
from kvarn.kernels.torch.attention import PAIRS_AT_ONCE, QUERIES_AT_ONCE, TorchAttentionMetadata, plan_attention

SIZE = 16


@dataclass
class Case:
    """A random step: batch, queries, this step's keys and values, and the caches as the step finds them."""

    batch: PagedBatch
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    histories: list[tuple[torch.Tensor, torch.Tensor]]
    """Keys and values of each sequence's whole context, [context, G, D]."""


def make_case(lengths: list[tuple[int, int]], heads: int, kv_heads: int, dim: int, seed: int) -> Case:
    """`lengths`: (queries, context) of each sequence. Every slot that holds no token is NaN."""
    torch.manual_seed(seed)
    needed = [-(-context // SIZE) for _, context in lengths]
    order = (torch.randperm(sum(needed) + 3) + 1).tolist()
    shape = (sum(needed) + 4, kv_heads, SIZE, dim)
    key_cache, value_cache = torch.full(shape, math.nan), torch.full(shape, math.nan)
    tables = torch.zeros((len(lengths), max(needed) + 2), dtype=torch.int32)
    positions, slots, starts, keys, values, histories = [], [], [0], [], [], []
    for row, ((count, context), blocks) in enumerate(zip(lengths, needed, strict=True)):
        tables[row, :blocks] = torch.tensor([order.pop() for _ in range(blocks)])
        history = torch.randn(2, context, kv_heads, dim)
        for position in range(context):
            block, offset = int(tables[row, position // SIZE]), position % SIZE
            if position < context - count:
                key_cache[block, :, offset] = history[0, position]
                value_cache[block, :, offset] = history[1, position]
            else:
                positions.append(position)
                slots.append(block * SIZE + offset)
        keys.append(history[0, context - count :])
        values.append(history[1, context - count :])
        histories.append((history[0], history[1]))
        starts.append(len(positions))
    batch = PagedBatch(
        positions=torch.tensor(positions),
        query_starts=torch.tensor(starts, dtype=torch.int32),
        context_lens=torch.tensor([context for _, context in lengths], dtype=torch.int32),
        block_tables=tables,
        slot_mapping=torch.tensor(slots),
    )
    queries = torch.randn(len(positions), heads, dim)
    return Case(batch, queries, torch.cat(keys), torch.cat(values), key_cache, value_cache, histories)


def naive(case: Case, scale: float, window: int | None, softcap: float | None) -> torch.Tensor:
    out = torch.empty_like(case.queries, dtype=torch.float64)
    starts = case.batch.query_starts.tolist()
    group = case.queries.shape[1] // case.key_cache.shape[1]
    for row, (keys, values) in enumerate(case.histories):
        for token in range(starts[row], starts[row + 1]):
            position = int(case.batch.positions[token])
            first = 0 if window is None else max(0, position + 1 - window)
            for head in range(case.queries.shape[1]):
                k = keys[first : position + 1, head // group].double()
                scores = k @ case.queries[token, head].double() * scale
                if softcap is not None:
                    scores = torch.tanh(scores / softcap) * softcap
                out[token, head] = torch.softmax(scores, 0) @ values[first : position + 1, head // group].double()
    return out.float()


def plan_of(batch: PagedBatch, case: Case, window: int | None = None) -> TorchAttentionMetadata:
    kv_heads, dim = case.key_cache.shape[1], case.key_cache.shape[3]
    return plan_attention(batch, HeadShape(case.queries.shape[1], kv_heads, dim), window)


def run(case: Case, scale: float, window: int | None = None, softcap: float | None = None) -> torch.Tensor:
    plan = plan_of(case.batch, case, window)
    plan.write(case.keys, case.values, case.key_cache, case.value_cache)
    return plan.attend(case.queries, case.key_cache, case.value_cache, scale, softcap)


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("window", [None, 1, 5, 16, 17, 40])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 8), (3, 3, 5), (6, 1, 16)])
def test_mixed_steps_equal_the_definition(
    heads: int, kv_heads: int, dim: int, window: int | None, softcap: float | None
) -> None:
    lengths = [(1, 1), (1, 16), (7, 7), (1, 17), (16, 48), (1, 33), (2, 50), (19, 19), (1, 61), (33, 70)]
    case = make_case(lengths, heads, kv_heads, dim, seed=heads)
    torch.testing.assert_close(run(case, 0.4, window, softcap), naive(case, 0.4, window, softcap), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 150])
def test_steps_larger_than_one_piece_equal_the_definition(window: int | None) -> None:
    """More pairs and more queries than are gathered or multiplied at once."""
    lengths = [(1, 1000), (300, 500), (1, 700), (129, 129), (1, 31)]
    case = make_case(lengths, heads=2, kv_heads=1, dim=4, seed=9)
    assert sum(context // SIZE for count, context in lengths if count == 1) > PAIRS_AT_ONCE
    assert max(count for count, _ in lengths) > 2 * QUERIES_AT_ONCE
    torch.testing.assert_close(run(case, 0.4, window), naive(case, 0.4, window, None), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_random_steps_equal_the_definition(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    kv_heads = draw(1, 4)
    lengths = []
    for _ in range(draw(1, 8)):
        context = draw(1, 90)
        lengths.append((1 if draw(0, 2) else draw(1, context + 1), context))
    window = None if draw(0, 2) else draw(1, 100)
    case = make_case(lengths, kv_heads * draw(1, 4), kv_heads, 2 * draw(1, 9), seed)
    torch.testing.assert_close(run(case, 0.3, window), naive(case, 0.3, window, None), atol=2e-6, rtol=1e-5)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    together = make_case([(1, 40), (1, 71), (1, 5), (20, 60), (1, 90)], heads=4, kv_heads=2, dim=8, seed=1)
    all_rows = run(together, 0.3)
    for row in (0, 1, 2, 4):
        token = int(together.batch.query_starts[row])
        batch = PagedBatch(
            positions=together.batch.positions[token : token + 1],
            query_starts=torch.tensor([0, 1], dtype=torch.int32),
            context_lens=together.batch.context_lens[row : row + 1],
            block_tables=together.batch.block_tables[row : row + 1],
            slot_mapping=together.batch.slot_mapping[token : token + 1],
        )
        query = together.queries[token : token + 1]
        alone = plan_of(batch, together).attend(query, together.key_cache, together.value_cache, 0.3)
        assert torch.equal(alone[0], all_rows[token])


def test_blocks_left_of_the_window_are_not_read() -> None:
    case = make_case([(1, 80), (5, 80)], heads=2, kv_heads=1, dim=4, seed=2)
    want = naive(case, 0.5, 20, None)
    for row in range(2):
        for block in case.batch.block_tables[row, :3].tolist():
            case.key_cache[block] = math.nan
            case.value_cache[block] = math.nan
    torch.testing.assert_close(run(case, 0.5, window=20), want, atol=2e-6, rtol=1e-5)


def test_writing_keys_and_values_touches_only_the_steps_slots() -> None:
    case = make_case([(1, 20), (3, 35)], heads=2, kv_heads=2, dim=4, seed=3)
    before = case.key_cache.clone()
    plan_of(case.batch, case).write(case.keys, case.values, case.key_cache, case.value_cache)
    changed = (before.nan_to_num(7.0) != case.key_cache.nan_to_num(7.0)).any(-1).any(1)
    slots = {(slot // SIZE, slot % SIZE) for slot in case.batch.slot_mapping.tolist()}
    assert {tuple(place) for place in changed.nonzero().tolist()} == slots
    for token, slot in enumerate(case.batch.slot_mapping.tolist()):
        assert torch.equal(case.value_cache[slot // SIZE, :, slot % SIZE], case.values[token])


def test_bfloat16_caches_accumulate_in_float32() -> None:
    case = make_case([(1, 200), (9, 130)], heads=4, kv_heads=2, dim=16, seed=4)
    for name in ("queries", "keys", "values", "key_cache", "value_cache"):
        setattr(case, name, getattr(case, name).bfloat16())
    case.histories = [(k.bfloat16().float(), v.bfloat16().float()) for k, v in case.histories]
    found = run(case, 0.25)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), naive(case, 0.25, None, None), atol=0.02, rtol=0.02)
