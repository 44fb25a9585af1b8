"""Rankings of chunks: by BM25, by vectors, and of several made one. Pure arithmetic over the views of a search."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from kvarn.retrieval.index.arrays import Array
from kvarn.retrieval.index.products import products
from kvarn.retrieval.index.views import View

Ranking = list[tuple[int, float]]
"""Chunks by id with their scores, best first; of equal ones the lower id first."""

K1, B = 1.2, 0.75
"""BM25's: how soon more of a word adds nothing, and how much a long chunk loses (Robertson and Zaragoza, 2009)."""
MAX_QUERY_WORDS = 64
"""Words of a query that count: its rarest."""
DECIMALS = 6
"""To which scores are compared: sums in another order, as another layout of the segments gives them, rank the same."""


def bm25(views: Sequence[View], query: Array, count: int) -> Ranking:
    """Rank by words. `query`: hashes, each once. Frequencies are those among visible rows alone, so nothing of other
    rows shows in a score; a word's weight is ln(1 + (N - n + 0.5) / (n + 0.5))."""
    visible = sum(view.count for view in views)
    if not visible or not len(query):
        return []
    length = sum(int(view.segment.lengths[view.visible].sum(dtype=np.int64)) for view in views) / visible
    found = [_postings(view, query) for view in views]
    frequencies = np.sum([[len(rows) for rows, _ in each] for each in found], axis=0)
    used = [int(i) for i in np.lexsort((query, frequencies)) if frequencies[i]][:MAX_QUERY_WORDS]
    weights = np.log1p((visible - frequencies + 0.5) / (frequencies + 0.5))
    best = []
    for view, postings in zip(views, found, strict=True):
        scores = np.zeros(view.segment.size)
        damping = K1 * (1 - B + B * view.segment.lengths / (length or 1.0))
        for i in sorted(used):
            rows, counts = postings[i]
            scores[rows] += weights[i] * (K1 + 1) * counts / (counts + damping[rows])
        best.append(top(scores, view.segment.chunk_ids, scores > 0, count))
    return merged(best, count)


def _postings(view: View, query: Array) -> list[tuple[Array, Array]]:
    """Visible rows with each word of a query, and how often it stands there."""
    segment = view.segment
    places = np.searchsorted(segment.hashes, query)
    found = []
    for word, place in zip(query, places, strict=True):
        begin = end = 0
        if place < len(segment.hashes) and segment.hashes[place] == word:
            begin, end = segment.starts[place], segment.starts[place + 1]
        rows, counts = segment.rows[begin:end], segment.counts[begin:end]
        if not view.is_whole:
            kept = view.visible[rows]
            rows, counts = rows[kept], counts[kept]
        found.append((rows, counts.astype(np.float64)))
    return found


def top(scores: Array, chunk_ids: Array, allowed: Array, count: int) -> Ranking:
    """The best rows of those allowed. `chunk_ids` are ascending."""
    rows = np.flatnonzero(allowed)
    values = np.round(scores[rows].astype(np.float64), DECIMALS)
    if len(rows) > count:
        least = np.partition(values, len(values) - count)[len(values) - count]
        kept = np.flatnonzero(values >= least)  # more than `count` where several are equal
        rows, values = rows[kept], values[kept]
    order = np.lexsort((chunk_ids[rows], -values))[:count]
    return [(int(chunk_ids[rows[i]]), float(values[i])) for i in order]


def merged(rankings: Iterable[Ranking], count: int) -> Ranking:
    """One ranking of several whose scores are comparable."""
    return sorted((each for ranking in rankings for each in ranking), key=lambda each: (-each[1], each[0]))[:count]


def fuse(words: Sequence[Ranking], vectors: Sequence[Ranking], depth: int, count: int) -> Ranking:
    """One ranking of several, cut to `depth` each, by the mean of their scores, taken from 0 to 1 (a convex
    combination: Bruch, Gai and Ingber, 2023). The best of a ranking has 1; one that is not in it has 0, and so has the
    last one by vectors where others were cut off, for models differ in how near they put what is unlike."""
    leasts = [(ranking, 0.0) for ranking in words if ranking]
    leasts += [(ranking, ranking[-1][1] if len(ranking) >= depth else 0.0) for ranking in vectors if ranking]
    sums: defaultdict[int, float] = defaultdict(float)
    for ranking, least in leasts:
        span = ranking[0][1] - least
        for chunk_id, score in ranking:
            sums[chunk_id] += max(0.0, score - least) / span if span > 0 else 1.0
    return merged([[(chunk_id, round(value / len(leasts), DECIMALS)) for chunk_id, value in sums.items()]], count)


def diversify(candidates: Sequence[float], vectors: Array, weight: float, count: int) -> list[int]:
    """Places of the candidates to keep, by maximal marginal relevance (Carbonell and Goldstein, 1998): the next one has
    the most of (1 - weight) x score - weight x likeness to those kept. `vectors`: [candidates, d], length 1 or 0."""
    scores, left = np.asarray(candidates, dtype=np.float64), list(range(len(candidates)))
    likeness = np.zeros(len(candidates))
    kept: list[int] = []
    while left and len(kept) < count:
        values = (1 - weight) * scores[left] - weight * likeness[left]
        best = left.pop(int(np.argmax(np.round(values, DECIMALS))))
        kept.append(best)
        likeness = np.maximum(likeness, products(vectors, vectors[best]))
    return kept


def cap_by_source(sources: Sequence[str], cap: int, count: int) -> list[int]:
    """Places of the first ones, at most `cap` of a source while there are others; then the rest, in their order."""
    seen: defaultdict[str, int] = defaultdict(int)
    first: list[int] = []
    rest: list[int] = []
    for place, source in enumerate(sources):
        seen[source] += 1
        (first if seen[source] <= cap else rest).append(place)
    return sorted([*first, *rest][:count])
