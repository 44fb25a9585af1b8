"""Results of a conversation's tools as the model is shown them: quoted data, numbered, which an answer may cite."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from kvarn.retrieval.quoting import find_citations, quote
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

    def annotations(self, text: str) -> list[dict[str, Any]]:
        """The citations in a text, as OpenAI's annotations. `start` and `end` are ours: characters of the file's text
        that were quoted."""
        found = []
        for begin, end, number in find_citations(text, self.boundary, self.quotes):
            cited = self.quotes[number]
            if cited.url:
                place = {"start_index": begin, "end_index": end}
                found.append({"type": "url_citation", **place, "url": cited.url, "title": cited.filename})
                continue
            where = {"start": cited.start, "end": cited.end}
            citation = {"type": "file_citation", "index": begin, "file_id": cited.file_id}
            found.append({**citation, "filename": cited.filename, **where})
        return found

    def numbered(self) -> list[dict[str, Any]]:
        """The quotes as they are kept with a call, for what goes on from it."""
        return [
            {"number": number, "file_id": each.file_id, "filename": each.filename, "start": each.start, "end": each.end}
            | ({"url": each.url} if each.url else {})
            for number, each in self.quotes.items()
        ]
