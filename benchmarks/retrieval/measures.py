"""Measures of a ranking against judgements, and of an answer against its sources."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


def recall(ranking: Sequence[str], gains: Mapping[str, float], depth: int) -> float:
    """The share of the relevant items (gain above 0) among the first `depth`; 0 where nothing is relevant."""
    relevant = {item for item, gain in gains.items() if gain > 0}
    return len(relevant.intersection(ranking[:depth])) / len(relevant) if relevant else 0.0


def reciprocal_rank(ranking: Sequence[str], gains: Mapping[str, float]) -> float:
    """One divided by the place of the first relevant item; 0 where there is none."""
    return next((1 / place for place, item in enumerate(ranking, 1) if gains.get(item, 0) > 0), 0.0)


def ndcg(ranking: Sequence[str], gains: Mapping[str, float], depth: int) -> float:
    """Discounted cumulative gain of the first `depth`, over that of the best order (Järvelin and Kekäläinen 2002, in
    the linear form of trec_eval). An item counts where it stands first."""
    found = [gains.get(item, 0.0) for item in dict.fromkeys(ranking)]
    best = _discounted(sorted(gains.values(), reverse=True)[:depth])
    return _discounted(found[:depth]) / best if best else 0.0


def _discounted(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(place + 1) for place, gain in enumerate(gains, 1))


@dataclass(frozen=True, slots=True)
class Cited:
    """A passage that an answer cites: characters `[at, end)` of the answer cite `[start, stop)` of a document."""

    at: int
    end: int
    document: str
    start: int
    stop: int
    quote: str


@dataclass(frozen=True, slots=True)
class Grounding:
    sentences: int
    covered: int
    """Sentences with a citation in them or right behind them."""
    citations: int
    exact: int
    """Citations whose quote is what stands there in the document."""

    @property
    def coverage(self) -> float:
        return self.covered / self.sentences if self.sentences else 1.0

    @property
    def groundedness(self) -> float:
        """The share of citations that re-read to their source."""
        return self.exact / self.citations if self.citations else 1.0


_SENTENCE = re.compile(r"\S.*?(?:[.!?](?=\s|\[|$)|$)(?:\s*\[[^\]]*\])*", re.DOTALL)


def grounding(answer: str, cited: Sequence[Cited], documents: Mapping[str, str]) -> Grounding:
    """Re-read each citation, and look for a citation in each sentence."""
    spans = [found.span() for found in _SENTENCE.finditer(answer)]
    covered = sum(any(begin <= each.at < end for each in cited) for begin, end in spans)
    exact = sum(
        bool(each.quote) and documents.get(each.document, "")[each.start : each.stop] == each.quote for each in cited
    )
    return Grounding(len(spans), covered, len(cited), exact)
