"""Answers with citations, and whether they re-read to their sources.

The answer is the sentence of the context that fits the question best, with the citation that its passage was given: no
model writes it, so that what is measured are the spans, their numbers and the reader of citations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.retrieval.measures import Cited, grounding
from benchmarks.retrieval.sets import JudgedSet, Question
from benchmarks.retrieval.systems import STORE, System
from kvarn.retrieval.citations import CitationReader
from kvarn.retrieval.context import Span, build_context
from kvarn.retrieval.quoting import citation, make_boundary
from kvarn.store.owner import ANYBODY

_CONTEXT_TOKENS = 1500
_SENTENCES = 2
"""Of an answer."""


@dataclass(frozen=True, slots=True)
class Grounded:
    answers: int
    groundedness: float
    """Share of citations whose quote is what stands in the file."""
    coverage: float
    """Share of sentences with a citation."""
    right: float
    """Share of answers of which a sentence is the judged one."""


async def measure_answers(judged: JudgedSet, system: System, ranker: str) -> Grounded:
    texts = {name: page.text for name, page in judged.pages.items()}
    found = [await _answer(question, system, ranker) for question in judged.questions]
    read = [grounding(answer, cited, texts) for answer, cited in found]
    right = [
        any(
            _inside(each, span) and texts[span[0]][span[1] : span[2]] in answer
            for each in cited
            for span in question.spans
        )
        for question, (answer, cited) in zip(judged.questions, found, strict=True)
    ]
    citations, sentences = sum(each.citations for each in read), sum(each.sentences for each in read)
    exact, covered = sum(each.exact for each in read), sum(each.covered for each in read)
    return Grounded(len(found), exact / max(1, citations), covered / max(1, sentences), sum(right) / max(1, len(right)))


async def _answer(question: Question, system: System, ranker: str) -> tuple[str, list[Cited]]:
    result = await system.retriever.search(ANYBODY, [STORE], [question.text], max_results=10, ranker=ranker)
    context = build_context(result.hits, _CONTEXT_TOKENS, lambda text: len(text) // 3)
    boundary = make_boundary(b"benchmark", question.id)
    written = " ".join(
        f"{sentence} {citation(boundary, number)}" for number, sentence in _best(question.text, context.spans, system)
    )
    reader = CitationReader(boundary, dict(enumerate(context.spans, 1)))
    pieces = [reader.feed(written[begin : begin + 7]) for begin in range(0, len(written), 7)] + [reader.finish()]
    answer = "".join(piece.text for piece in pieces)
    cited = [
        Cited(
            max(0, each["index"] - 1),
            each["index"],
            system.names[each["file_id"]],
            each["start"],
            each["end"],
            each["quote"],
        )
        for piece in pieces
        for each in piece.annotations
    ]
    return answer, cited


def _best(question: str, spans: Sequence[Span], system: System) -> list[tuple[int, str]]:
    """The sentences most like the question, and the numbers of their spans."""
    sentences = [
        (number, sentence)
        for number, span in enumerate(spans, 1)
        for sentence in re.findall(r"[^\s#][^.!?#]*[.!?]", span.text)
    ]
    if not sentences:
        return []
    vectors = system.embedder.embed([question, *(sentence for _, sentence in sentences)]).astype(np.float32)
    order = np.argsort(-(vectors[1:] @ vectors[0]), kind="stable")[:_SENTENCES]
    return [sentences[place] for place in order]


def _inside(cited: Cited, span: tuple[str, int, int]) -> bool:
    return cited.document == span[0] and cited.start <= span[1] and span[2] <= cited.stop
