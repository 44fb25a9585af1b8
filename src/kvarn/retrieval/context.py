"""Building of a prompt's context from what a search found.

    hits, best first -> without what is there already -> within the budget, no source more than its share
                     -> neighbours joined -> the best source first, each source in its own order

A source's passages stand in the order of its text, so that what refers to something above it comes after it; sources
stand by their best hit, so that the best is read first and a cut at the end takes the least. Every span is a part of
its file's text: `text == document.text[start:end]`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from kvarn.retrieval.quoting import quote
from kvarn.retrieval.types import Hit

CountTokens = Callable[[str], int]

_LEAST_TOKENS = 32
"""Tokens below which the beginning of a passage is not worth quoting."""
_OVERHEAD_TOKENS = 48
"""Tokens of the lines around a quoted text, and of its file's name."""
_SHARE = 0.6
"""Part of the budget that one source has where others were found too."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a file's text that is quoted."""

    store_id: str
    file_id: str
    filename: str
    start: int
    end: int
    text: str
    score: float
    page: int | None = None
    section: str = ""

    @property
    def source(self) -> tuple[str, str]:
        return self.store_id, self.file_id


@dataclass(frozen=True, slots=True)
class Context:
    """Spans that are quoted, in the order of the prompt."""

    spans: tuple[Span, ...]
    tokens: int
    """Tokens of the spans with the lines around them, counted high."""
    left_out: int
    """Parts of hits that are not quoted, or not whole, for want of room."""

    def quoted(self, boundary: str, *, markers: Collection[str] = frozenset(), first: int = 1) -> str:
        """The spans as data in a prompt, numbered from `first`; empty where there are none."""
        if not self.spans:
            return ""
        texts, names = [each.text for each in self.spans], [each.filename for each in self.spans]
        return quote(texts, names, boundary=boundary, markers=markers, first=first)


def build_context(
    hits: Sequence[Hit], max_tokens: int, count_tokens: CountTokens, *, max_source_tokens: int | None = None
) -> Context:
    """Choose what is quoted of hits, best first, in at most `max_tokens`. `max_source_tokens`: of one file; default: a
    part of them, or all where only one file was found."""
    sources = {(hit.store_id, hit.file_id) for hit in hits}
    share = max_source_tokens or (max_tokens if len(sources) == 1 else int(_SHARE * max_tokens))
    chosen: list[Span] = []
    used, left_out = 0, 0
    used_by: dict[tuple[str, str], int] = {}
    for span in (part for hit in hits for part in _uncovered(_span(hit), chosen)):
        room = min(max_tokens - used, share - used_by.get(span.source, 0)) - _OVERHEAD_TOKENS
        kept, tokens = _cut(span, room, count_tokens)
        left_out += kept is None or kept.end < span.end
        if kept is not None:
            chosen.append(kept)
            used += tokens + _OVERHEAD_TOKENS
            used_by[span.source] = used_by.get(span.source, 0) + tokens + _OVERHEAD_TOKENS
    return Context(tuple(_ordered(chosen)), used, left_out)


def _span(hit: Hit) -> Span:
    chunk = hit.chunk
    where = hit.store_id, hit.file_id, hit.filename, chunk.start, chunk.end
    return Span(*where, chunk.text, hit.score, chunk.page, chunk.section)


def _uncovered(span: Span, chosen: Sequence[Span]) -> list[Span]:
    """The parts of a span that no chosen one quotes already; none where another file has the same text."""
    if any(each.text == span.text for each in chosen):
        return []
    parts = [span]
    for each in chosen:
        if each.source == span.source:
            parts = [part for whole in parts for part in _without(whole, each.start, each.end)]
    return [part for part in parts if part.text.strip()]


def _without(span: Span, start: int, end: int) -> list[Span]:
    if end <= span.start or span.end <= start:
        return [span]
    before, after = _part(span, span.start, max(span.start, start)), _part(span, min(span.end, end), span.end)
    return [part for part in (before, after) if part.text]


def _part(span: Span, start: int, end: int) -> Span:
    return replace(span, start=start, end=end, text=span.text[start - span.start : end - span.start])


def _cut(span: Span, room: int, count_tokens: CountTokens) -> tuple[Span | None, int]:
    """Cut a span to what has room, at the end of a sentence or at least of a word; the span and its tokens. None: too
    little has."""
    tokens = count_tokens(span.text)
    if tokens <= room:
        return span, tokens
    while room >= _LEAST_TOKENS and tokens > room and span.text:
        length = int(len(span.text) * room / tokens * 0.95)
        head = span.text[:length]
        sentence = max(head.rfind(mark) + len(mark) for mark in (". ", "\n", "! ", "? ", "。"))
        end = sentence if sentence > length // 2 else head.rfind(" ") if " " in head else length
        span = _part(span, span.start, span.start + end)
        tokens = count_tokens(span.text)
    return (span, tokens) if span.text.strip() and tokens <= room and room >= _LEAST_TOKENS else (None, 0)


def _ordered(chosen: Sequence[Span]) -> list[Span]:
    """Neighbours of one file are one span; files by their best score, spans by their place."""
    by_source: dict[tuple[str, str], list[Span]] = {}
    for span in chosen:
        by_source.setdefault(span.source, []).append(span)
    best = sorted(by_source.values(), key=lambda spans: -max(each.score for each in spans))
    return [span for spans in best for span in _joined(sorted(spans, key=lambda each: each.start))]


def _joined(spans: Sequence[Span]) -> list[Span]:
    joined: list[Span] = []
    for span in spans:
        last = joined[-1] if joined else None
        if last is not None and last.end == span.start:
            score = max(last.score, span.score)
            joined[-1] = replace(last, end=span.end, text=last.text + span.text, score=score)
        else:
            joined.append(span)
    return joined
