"""Citations in an answer while it is written: marks become OpenAI's `file_citation` annotations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kvarn.retrieval.quoting import citation, find_citations

_LONGEST_NUMBER = 6


class Cited(Protocol):
    """A part of a file's text that may be cited."""

    @property
    def file_id(self) -> str: ...

    @property
    def filename(self) -> str: ...

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def text(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Annotated:
    """A piece of an answer's text without marks, and the annotations that belong behind some of its characters."""

    text: str
    annotations: tuple[Mapping[str, Any], ...] = ()


class CitationReader:
    """Reads an answer's text as it comes. A mark, with the space before it, is taken out and becomes an annotation at
    its place; what may be the beginning of one is held back. A mark of a number that was not offered, or with other
    digits, as a quoted text may forge it, is text. `offered`: what may be cited, by number; more may be added."""

    def __init__(self, boundary: str, offered: Mapping[int, Cited]) -> None:
        self._boundary = boundary
        self._offered = offered
        mark = re.escape(citation(boundary, 0).removesuffix("0]"))
        partial = "|".join(re.escape(mark_part) for mark_part in _beginnings(citation(boundary, 0).removesuffix("0]")))
        self._unfinished = re.compile(rf" ?(?:(?:{partial})|{mark}[0-9]{{1,{_LONGEST_NUMBER}}})?\Z")
        self._held = ""
        self._written = 0  # characters of text that have been given
        self._place = -1  # of the latest annotation
        self._cited: set[int] = set()  # numbers that are cited there

    def feed(self, piece: str) -> Annotated:
        """Take the next piece; give what is certain."""
        text = self._held + piece
        begin = self._unfinished.search(text)
        end = len(text) if begin is None else begin.start()
        self._held = text[end:]
        return self._read(text[:end])

    def finish(self) -> Annotated:
        """Give what was held back: nothing comes any more."""
        text, self._held = self._held, ""
        return self._read(text)

    def _read(self, text: str) -> Annotated:
        parts: list[str] = []
        annotations: list[Mapping[str, Any]] = []
        length, last = self._written, 0
        for begin, end, number in find_citations(text, self._boundary, self._offered):
            before = text[last:begin].removesuffix(" ")
            parts.append(before)
            length += len(before)
            last = end
            if length != self._place:
                self._place, self._cited = length, set()
            if number not in self._cited:
                self._cited.add(number)
                annotations.append(self._annotation(number, length))
        parts.append(text[last:])
        given = "".join(parts)
        self._written += len(given)
        return Annotated(given, tuple(annotations))

    def _annotation(self, number: int, index: int) -> Mapping[str, Any]:
        cited = self._offered[number]
        found = {"type": "file_citation", "index": index, "file_id": cited.file_id, "filename": cited.filename}
        return found | {"start": cited.start, "end": cited.end, "quote": cited.text}


def _beginnings(text: str) -> list[str]:
    return [text[:length] for length in range(len(text), 0, -1)]
