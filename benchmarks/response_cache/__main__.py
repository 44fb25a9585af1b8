"""The semantic response cache over questions of known meaning: wrong hits against the bound, hits, seconds saved.

python -m benchmarks.response_cache
python -m benchmarks.response_cache --questions 20000 --bound 0.02
python -m benchmarks.response_cache --set unseen --questions 6000 --seed 2
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.response_cache import pairs, unseen
from benchmarks.response_cache.pairs import Question
from benchmarks.retrieval.systems import Encoder
from kvarn.response_cache.gate import contents_of
from kvarn.response_cache.questions import Questions
from kvarn.store.owner import ANYBODY
from kvarn.text.checkpoint import SMALL_EMBEDDER

_AT_ONCE = 256
_MOST_BYTES = 1 << 30
"""More than all questions need."""
_SETS = {"seen": pairs.questions, "unseen": unseen.questions}


@dataclass(slots=True)
class Tally:
    """What a cache did with the questions."""

    name: str
    exact: int = 0
    hits: int = 0  # semantic ones
    wrong: Counter[str] = field(default_factory=Counter)  # by the change that was overlooked
    first_hit: int | None = None  # number of the question

    def row(self, asked: int, answer_s: float, embed_s: float) -> str:
        wrong, low, high = self.wrong.total(), *interval(self.wrong.total(), self.hits)
        saved = (self.hits + self.exact) * answer_s - (asked - self.exact) * embed_s
        first = "none" if self.first_hit is None else self.first_hit
        rate = f"{100 * wrong / max(1, self.hits):.2f} % ({100 * low:.2f} to {100 * high:.2f})"
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.wrong.most_common())
        exact, semantic = f"{100 * self.exact / asked:.1f} %", f"{100 * self.hits / asked:.1f} %"
        cells = (self.name, exact, semantic, f"{wrong} of {self.hits}", rate, first, f"{saved:.0f}", kinds or "none")
        return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=_SETS, default="seen", help="templates that the gate was written with, or not")
    parser.add_argument("--questions", type=int, default=10_000)
    parser.add_argument("--bound", type=float, default=0.01, help="share of wrong answers allowed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--answer-s", type=float, default=2.0, help="seconds that a model takes for an answer")
    options = parser.parse_args()
    asked = _SETS[options.set](options.questions, options.seed)
    vectors, embed_s = embedded([each.text for each in asked])
    changes = Counter(each.change for each in asked)
    print(", ".join(f"{kind} {count}" for kind, count in changes.most_common()))
    print(
        f"embedding {1000 * embed_s:.1f} ms a question, in batches; an answer is taken to need {options.answer_s} s\n"
    )
    print(
        "| cache | exact hits | semantic hits | wrong | of semantic hits (95 %) | first | seconds saved | by change |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for tally in tallies(asked, vectors, options.bound, options.seed):
        print(tally.row(len(asked), options.answer_s, embed_s))
    print("\n| pairs | number | same to the gate | similar too (0.85) | of pairs (95 %) |\n|---|---|---|---|---|")
    for row in by_change(asked, vectors):
        print(row)


def by_change(asked: Sequence[Question], vectors: np.ndarray) -> Iterator[str]:
    """Rows of what the gate and a threshold of 0.85 take for the same, each question beside the one it was made of."""
    number, gated, similar = Counter[str](), Counter[str](), Counter[str]()
    for place, question in enumerate(asked):
        if question.of is None or question.text == asked[question.of].text:
            continue
        number[question.change] += 1
        if contents_of(question.text) == contents_of(asked[question.of].text):
            gated[question.change] += 1
            similar[question.change] += bool(vectors[place] @ vectors[question.of] >= 0.85)
    for kind, pairs_of in number.most_common():
        low, high = interval(similar[kind], pairs_of)
        share = f"{100 * similar[kind] / pairs_of:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
        yield f"| {kind} | {pairs_of} | {gated[kind]} | {similar[kind]} | {share} |"


def tallies(asked: Sequence[Question], vectors: np.ndarray, bound: float, seed: int) -> Iterator[Tally]:
    for threshold in (0.85, 0.9085):
        yield static(f"threshold {threshold}", asked, vectors, threshold, gated=False)
        yield static(f"threshold {threshold}, gate", asked, vectors, threshold, gated=True)
    yield learned(f"learned for {100 * bound:g} %, no gate", asked, vectors, bound, seed, gated=False)
    yield learned(f"learned for {100 * bound:g} %, gate (Kvarn's)", asked, vectors, bound, seed, gated=True)


def embedded(texts: Sequence[str]) -> tuple[np.ndarray, float]:
    """Vectors of texts, and the seconds for one."""
    encoder, began = Encoder(SMALL_EMBEDDER), time.perf_counter()
    once = list(dict.fromkeys(texts))
    parts = [encoder.embed(once[first : first + _AT_ONCE]) for first in range(0, len(once), _AT_ONCE)]
    seconds = (time.perf_counter() - began) / len(once)
    places = {text: place for place, text in enumerate(once)}
    return np.concatenate(parts).astype(np.float32)[[places[text] for text in texts]], seconds


def static(name: str, asked: Sequence[Question], vectors: np.ndarray, threshold: float, *, gated: bool) -> Tally:
    """A cache that gives the nearest answer from a fixed similarity on."""
    tally, known, buckets = Tally(name), dict[str, str](), dict[bytes, list[int]]()
    for number, question in enumerate(asked):
        if question.text in known:
            tally.exact += 1
            continue
        bucket = buckets.setdefault(contents_of(question.text) if gated else b"", [])
        if bucket:
            similarities = vectors[bucket] @ vectors[number]
            place = int(np.argmax(similarities))
            if similarities[place] >= threshold:
                _count(tally, number, asked[bucket[place]], question)
                continue
        known[question.text] = question.meaning
        bucket.append(number)
    return tally


def learned(
    name: str, asked: Sequence[Question], vectors: np.ndarray, bound: float, seed: int, *, gated: bool
) -> Tally:
    """Kvarn's cache: a neighbour answers where comparisons allow it, else the model does, and shows what is right."""
    tally, known = Tally(name), dict[bytes, Question]()
    cache = Questions(bound, len(asked), _MOST_BYTES, random.Random(seed).random)
    for number, question in enumerate(asked):
        key, vector = question.text.encode(), vectors[number]
        if key in known:
            tally.exact += 1
            continue
        bucket = contents_of(question.text) if gated else b""
        found = cache.nearest(ANYBODY, bucket, vector)
        if found is not None and found.may_answer:
            _count(tally, number, known[found.known.key], question)
            continue
        if found is not None:
            cache.learn(ANYBODY, found, known[found.known.key].meaning == question.meaning)
        known[key] = question
        cache.add(ANYBODY, bucket, key, vector)
    return tally


def _count(tally: Tally, number: int, given: Question, asked: Question) -> None:
    tally.hits += 1
    tally.first_hit = number if tally.first_hit is None else tally.first_hit
    if given.meaning != asked.meaning:
        tally.wrong[asked.change] += 1


def interval(wrong: int, tries: int) -> tuple[float, float]:
    """Wilson's interval of a share, 95 %."""
    if not tries:
        return 0.0, 1.0
    z, share = 1.96, wrong / tries
    middle = (share + z * z / (2 * tries)) / (1 + z * z / tries)
    half = z / (1 + z * z / tries) * math.sqrt(share * (1 - share) / tries + z * z / (4 * tries * tries))
    return max(0.0, middle - half), min(1.0, middle + half)


if __name__ == "__main__":
    main()
