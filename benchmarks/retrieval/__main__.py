"""How well searches find, by vectors, by words, by both, and reranked.

    python -m benchmarks.retrieval                                       all sets
    python -m benchmarks.retrieval --sets docs generated --questions 100

Debian's packages are downloaded (4 MB) into the cache the first time, and vectors are kept there. `docs` and
`generated` need no network.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.retrieval.answers import measure_answers
from benchmarks.retrieval.debian import PACKAGES, read_package
from benchmarks.retrieval.generated import generate
from benchmarks.retrieval.measures import ndcg, recall, reciprocal_rank
from benchmarks.retrieval.sets import JudgedSet, read_docs
from benchmarks.retrieval.systems import SYSTEMS, Encoder, RememberedVectors, System, build, gains_of
from kvarn.text.checkpoint import SMALL_EMBEDDER

RERANKER = "kvarn-demo-rerank"
_SETS = ("docs", "generated", *PACKAGES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=_SETS, default=_SETS)
    parser.add_argument("--questions", type=int, default=201, help="of a set, at most")
    parser.add_argument("--pages", type=int, default=300, help="of a generated or downloaded set, at most")
    parser.add_argument("--tokens", type=int, default=200, help="of a chunk")
    parser.add_argument("--overlap", type=int, default=50)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--reranker", default=RERANKER, help="a packaged model or a directory")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/kvarn-bench/retrieval").expanduser())
    options = parser.parse_args()
    embedder = RememberedVectors(SMALL_EMBEDDER, options.cache / "vectors.npz")
    reranker = Encoder(options.reranker) if "hybrid + rerank" in options.systems else None
    for name in options.sets:
        judged = read_set(name, options.pages, options.questions, options.cache)
        asyncio.run(run(judged, embedder, reranker, options))


def read_set(name: str, pages: int, questions: int, cache: Path) -> JudgedSet:
    if name == "docs":
        judged = read_docs()
        return replace(judged, questions=judged.questions[:questions])
    return generate(pages, questions) if name == "generated" else read_package(name, cache, questions, pages)


async def run(
    judged: JudgedSet, embedder: RememberedVectors, reranker: Encoder | None, options: argparse.Namespace
) -> None:
    with tempfile.TemporaryDirectory(prefix="kvarn-retrieval-") as folder:
        began = time.perf_counter()
        system = await build(judged, Path(folder), embedder, reranker, options.tokens, options.overlap)
        took = time.perf_counter() - began
        embedder.save()
        sizes = f"{len(judged.pages)} pages, {len(system.places)} chunks, {len(judged.questions)} questions"
        print(f"\n{judged.name}: {sizes}; built in {took:.0f} s")
        print("| system | nDCG@10 | recall@10 | recall@50 | MRR@10 | p50 ms | p95 ms |")
        print("|---|---|---|---|---|---|---|")
        for kind in options.systems:
            await measure(judged, system, kind)
        if not judged.by_page:
            grounded = await measure_answers(judged, system, "none")
            print(
                f"\nanswers: {grounded.answers}, groundedness {grounded.groundedness:.1%}, "
                f"citation coverage {grounded.coverage:.1%}, with the judged sentence {grounded.right:.1%}"
            )
        system.retriever.close()


async def measure(judged: JudgedSet, system: System, kind: str) -> None:
    """Print the figures of one system over all questions, as means in percent."""
    rows, seconds = [], []
    places = list(system.places.values())
    for question in judged.questions:
        began = time.perf_counter()
        found = await system.search(kind, question.text)
        seconds.append(time.perf_counter() - began)
        ranking, gains = gains_of(question, found, places, by_page=judged.by_page)
        rows.append(
            (
                ndcg(ranking, gains, 10),
                recall(ranking, gains, 10),
                recall(ranking, gains, 50),
                reciprocal_rank(ranking[:10], gains),
            )
        )
    median, late = (1000 * np.percentile(seconds, share) for share in (50, 95))
    print(f"| {kind} | {_percent(rows)} | {median:.0f} | {late:.0f} |", flush=True)


def _percent(rows: Sequence[Sequence[float]]) -> str:
    return " | ".join(f"{100 * each:.1f}" for each in np.mean(rows, axis=0))


if __name__ == "__main__":
    main()
