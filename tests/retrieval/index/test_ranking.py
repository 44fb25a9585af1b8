"""Rankings: ties by id, fusion by ranks, results that are unlike each other and not all of one file."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.retrieval.index.products import products
from kvarn.retrieval.index.ranking import cap_by_source, diversify, fuse, top
from profiles import examples


@settings(max_examples=examples(100))
@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(1, 50), st.data())
def test_the_best_rows_are_those_of_a_sort(scores: list[int], count: int, data: st.DataObject) -> None:
    allowed = data.draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores)))
    ids = np.arange(100, 100 + len(scores))
    found = top(np.array(scores, np.float32), ids, np.array(allowed), count)
    rows = [(100 + i, score) for i, (score, may) in enumerate(zip(scores, allowed, strict=True)) if may]
    assert found == sorted(rows, key=lambda each: (-each[1], each[0]))[:count]


def test_scores_that_differ_by_the_order_of_a_sum_are_equal() -> None:
    scores = np.array([0.3, 0.1 + 0.2, 0.30000001], np.float64)
    assert [chunk_id for chunk_id, _ in top(scores, np.array([7, 8, 9]), np.ones(3, bool), 3)] == [7, 8, 9]


def test_a_chunk_that_is_first_everywhere_has_the_score_of_one() -> None:
    assert fuse([[(1, 9.0), (2, 8.0)], [(1, 0.5)]], 2) == [(1, 1.0), (2, pytest.approx(61 / 62 / 2, abs=1e-6))]


def test_repetitions_come_after_what_is_new() -> None:
    vectors = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    assert diversify([0.9, 0.89, 0.5], vectors, 0.5, 3) == [0, 2, 1]
    assert diversify([0.9, 0.89, 0.5], vectors, 0.0, 2) == [0, 1]


def test_a_source_has_its_share_while_there_are_others() -> None:
    assert cap_by_source(["a", "a", "a", "b", "c"], 1, 3) == [0, 3, 4]
    assert cap_by_source(["a", "a", "a", "b"], 1, 3) == [0, 1, 3]


@pytest.mark.parametrize("count", [0, 1, 23, 24, 5000])
@pytest.mark.parametrize("size", [1, 384, 10_000])
def test_products_are_those_of_plain_vectors(count: int, size: int) -> None:
    if count * size > 5_000_000:
        count = 300
    chance = np.random.default_rng(0)
    vectors, query = chance.standard_normal((count, size)).astype(np.float16), chance.standard_normal(size)
    expected = vectors.astype(np.float64) @ query
    for given_vectors in (vectors, vectors.astype(np.float32)):
        found = products(given_vectors, query)
        assert found.dtype == np.float32 and np.allclose(found, expected, atol=1e-2)
