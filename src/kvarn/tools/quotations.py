"""Results of a conversation's tools as the model is shown them: quoted data, numbered, which an answer may cite."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kvarn.retrieval.citations import Annotated, CitationReader
from kvarn.retrieval.quoting import quote
from kvarn.tools.execution import texts_of
from kvarn.tools.types import Quote, ToolResult, WrittenFile


@dataclass(slots=True)
class Quotations:
    """Quoted texts of one conversation, by their numbers."""

    boundary: str
    markers: Collection[str] = frozenset()
    next_number: int = 1
    quotes: dict[int, Quote] = field(default_factory=dict)
    files: dict[str, WrittenFile] = field(default_factory=dict)
    """Files that code wrote, by their paths."""

    def show(self, result: ToolResult, name: str, max_bytes: int) -> tuple[str, range]:
        """A result as data for the model, in at most some `max_bytes` of its own text, and the numbers of its texts."""
        texts, sources, quotes = texts_of(result, name, max_bytes)
        first, self.next_number = self.next_number, self.next_number + len(texts)
        self.quotes |= dict(enumerate(quotes, self.next_number - len(quotes)))
        self.files |= {file.path: file for file in result.files}
        shown = quote(texts, sources, boundary=self.boundary, markers=self.markers, first=first)
        return shown, range(first, self.next_number)

    def reader(self) -> CitationReader | None:
        """Reads one answer: takes the marks of citations out of its text. None: there is nothing to cite."""
        return _Reader(self.boundary, self.quotes, self.files) if self.quotes or self.files else None

    def numbered(self) -> list[dict[str, Any]]:
        """The quotes as they are kept with a call, for what goes on from it."""
        return [{"number": number, **asdict(each), "text": ""} for number, each in self.quotes.items()]


class _Reader(CitationReader):
    """Cites web pages, and files that code wrote where the answer has their paths, too."""

    def __init__(self, boundary: str, offered: Mapping[int, Quote], files: Mapping[str, WrittenFile]) -> None:
        super().__init__(boundary, offered)
        self._files = files
        self._texts: list[str] = []

    def feed(self, piece: str) -> Annotated:
        read = super().feed(piece)
        self._texts.append(read.text)
        return read

    def finish(self) -> Annotated:
        read = super().finish()
        text = "".join([*self._texts, read.text])
        return replace(read, annotations=(*read.annotations, *_file_citations(text, self._files)))

    def _annotation(self, number: int, index: int) -> Mapping[str, Any]:
        cited = self._offered[number]
        if isinstance(cited, Quote) and cited.url:
            place = {"start_index": index, "end_index": index}
            return {"type": "url_citation", "url": cited.url, "title": cited.filename, **place}
        return super()._annotation(number, index)


def _file_citations(text: str, files: Mapping[str, WrittenFile]) -> Iterator[Mapping[str, Any]]:
    """OpenAI's citations of the files whose paths a text has, with `sandbox:` before them or not."""
    if not files:
        return
    longest_first = sorted(files, key=len, reverse=True)
    for found in re.finditer(rf"(?:sandbox:)?({'|'.join(map(re.escape, longest_first))})(?!\w)", text):
        file = files[found[1]]
        place = {"start_index": found.start(), "end_index": found.end()}
        named = {"container_id": file.container_id, "file_id": file.file_id, "filename": file.path.rpartition("/")[2]}
        yield {"type": "container_file_citation", **named, **place}
