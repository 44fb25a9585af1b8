"""Results of a conversation's tools as the model is shown them: quoted data, numbered, which an answer may cite."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kvarn.retrieval.citations import CitationReader
from kvarn.retrieval.quoting import quote
from kvarn.tools.execution import texts_of
from kvarn.tools.types import Quote, ToolResult


@dataclass(slots=True)
class Quotations:
    """Quoted texts of one conversation, by their numbers."""

    boundary: str
    markers: Collection[str] = frozenset()
    next_number: int = 1
    quotes: dict[int, Quote] = field(default_factory=dict)

    def show(self, result: ToolResult, name: str, max_bytes: int) -> tuple[str, range]:
        """A result as data for the model, in at most some `max_bytes` of its own text, and the numbers of its texts."""
        texts, sources, quotes = texts_of(result, name, max_bytes)
        first, self.next_number = self.next_number, self.next_number + len(texts)
        self.quotes |= dict(enumerate(quotes, self.next_number - len(quotes)))
        shown = quote(texts, sources, boundary=self.boundary, markers=self.markers, first=first)
        return shown, range(first, self.next_number)

    def reader(self) -> CitationReader:
        """Reads one answer: takes the marks of citations out of its text."""
        return _Reader(self.boundary, self.quotes)

    def numbered(self) -> list[dict[str, Any]]:
        """The quotes as they are kept with a call, for what goes on from it."""
        return [{"number": number, **asdict(each), "text": ""} for number, each in self.quotes.items()]


class _Reader(CitationReader):
    """Cites web pages, too."""

    def _annotation(self, number: int, index: int) -> Mapping[str, Any]:
        cited = self._offered[number]
        if isinstance(cited, Quote) and cited.url:
            place = {"start_index": index, "end_index": index}
            return {"type": "url_citation", "url": cited.url, "title": cited.filename, **place}
        return super()._annotation(number, index)
