"""Rankings: ties by id, fusion by ranks, results that are unlike each other and not all of one file."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.retrieval.index.products import products
from kvarn.retrieval.index.ranking import bm25, cap_by_source, diversify, fuse, top
from kvarn.retrieval.index.segment import FileVersion, make_segment
from kvarn.retrieval.index.views import View
from kvarn.retrieval.index.words import pack_words, query_hashes
from kvarn.store.repositories.chunks import IndexedChunk
from profiles import examples
from retrieval_world import Row, plain_bm25


@settings(max_examples=examples(100))
@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(1, 50), st.data())
def test_the_best_rows_are_those_of_a_sort(scores: list[int], count: int, data: st.DataObject) -> None:
    allowed = data.draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores)))
    ids = np.arange(100, 100 + len(scores))
    found = top(np.array(scores, np.float32), ids, np.array(allowed), count)
    rows = [(100 + i, score) for i, (score, may) in enumerate(zip(scores, allowed, strict=True)) if may]
    assert found == sorted(rows, key=lambda each: (-each[1], each[0]))[:count]


WORDS = st.lists(st.sampled_from(["red", "green", "blue", "black"]), max_size=6).map(" ".join)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(WORDS, st.booleans()), min_size=1, max_size=12), st.integers(0, 12), WORDS)
def test_bm25_scores_are_those_of_the_visible_rows_alone(rows: list[tuple[str, bool]], cut: int, query: str) -> None:
    views = []
    for first, part in ((0, rows[:cut]), (cut, rows[cut:])):  # two segments
        chunks = [IndexedChunk(first + i, "f", pack_words(text), None) for i, (text, _) in enumerate(part)]
        visible = np.array([may for _, may in part], bool)
        views.append(View(make_segment([FileVersion("f", 1)], chunks, ""), visible, bool(visible.all())))
    plain = [Row(i, "f", text) for i, (text, may) in enumerate(rows) if may]
    found = bm25(views, query_hashes(query), 20)
    assert found == [(row.number, pytest.approx(score, abs=2e-6)) for row, score in plain_bm25(plain, query)]


def test_scores_that_differ_by_the_order_of_a_sum_are_equal() -> None:
    scores = np.array([0.3, 0.1 + 0.2, 0.30000001], np.float64)
    assert [chunk_id for chunk_id, _ in top(scores, np.array([7, 8, 9]), np.ones(3, bool), 3)] == [7, 8, 9]


def test_a_chunk_that_is_first_everywhere_has_the_score_of_one() -> None:
    assert fuse([[(1, 9.0), (2, 4.5)]], [[(1, 0.5), (3, 0.4)]], 2, 3) == [(1, 1.0), (2, 0.25), (3, 0.0)]
    assert fuse([], [[(1, 0.5), (3, 0.4)]], 100, 3) == [(1, 1.0), (3, 0.8)]


def test_the_best_by_words_is_found_whatever_its_vector_is() -> None:
    vectors = [(chunk_id, 0.9 - chunk_id / 1000) for chunk_id in range(100)]
    assert [chunk_id for chunk_id, _ in fuse([[(500, 9.0)]], [vectors], 100, 100)].index(500) < 51


def test_scores_that_are_all_equal_are_the_best() -> None:
    assert fuse([], [[(1, -0.1), (2, -0.1)]], 100, 2) == [(1, 1.0), (2, 1.0)]


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
