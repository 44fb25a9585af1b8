"""DOCX: paragraphs, headings, items of lists and rows of tables of WordprocessingML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import BinaryIO

from kvarn.retrieval.parsing.archives import XmlReader
from kvarn.retrieval.parsing.outcome import Parsed, RefusedError, TextBuilder

_HEADING_STYLE = re.compile(r"heading ([1-9])$", re.I)
_SKIPPED = frozenset({"Fallback", "del", "moveFrom"})
"""Copies for old programs, and text that was deleted or moved away."""


def parse_docx(file: BinaryIO, max_characters: int) -> Parsed:
    """The body of the document. Raises RefusedError."""
    reader = XmlReader(file)
    body = _Body(_heading_levels(reader), TextBuilder(max_characters))
    if not reader.read(_main_part(reader), body.start, body.end, body.characters):
        raise RefusedError("The file has no document in it.")
    return body.builder.build("docx-1", _title(reader) or body.title)


class _Body:
    """Handlers of the main part."""

    def __init__(self, levels: Mapping[str, int], builder: TextBuilder) -> None:
        self.builder = builder
        self.title = ""
        self._levels = levels
        self._text: list[str] = []
        self._in_text = False
        self._skipped = 0
        self._level = 0
        self._is_item = False
        self._tables = 0
        self._cells: list[str] = []

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        if name in _SKIPPED or self._skipped:
            self._skipped += 1
        elif name == "p":
            if self._tables == 0:
                self._end_paragraph()  # one that this one lies in, as that of a text box does
            self._level, self._is_item = 0, False
        elif name == "t":
            self._in_text = True
        elif name in ("tab", "br", "cr"):
            self._text.append("\n" if name != "tab" and self._tables == 0 else " ")
        elif name == "pStyle":
            self._level = self._levels.get(attributes.get("val", ""), 0)
        elif name == "outlineLvl" and attributes.get("val", "").isdigit():
            self._level = min(int(attributes["val"]) + 1, 9) if int(attributes["val"]) < 9 else 0
        elif name == "numPr":
            self._is_item = True
        elif name == "tbl":
            self._tables += 1
        elif name in ("tr", "tc") and self._tables == 1:
            self._text = []

    def end(self, name: str) -> None:
        if self._skipped:
            self._skipped -= 1
        elif name == "t":
            self._in_text = False
        elif name == "tbl":
            self._tables -= 1
        elif name == "p" and self._tables:
            self._text.append(" ")
        elif name == "p":
            self._end_paragraph()
        elif name == "tc" and self._tables == 1:
            self._cells.append(" ".join("".join(self._text).split()))
            self._text = []
        elif name == "tr" and self._tables == 1:
            self.builder.add(" | ".join(self._cells) if any(self._cells) else "", "table")
            self._cells = []

    def characters(self, text: str) -> None:
        if self._in_text and not self._skipped:
            self._text.append(text)

    def _end_paragraph(self) -> None:
        text = "".join(self._text)
        if self._level:
            self.title = self.title or text.strip()
            self.builder.add(text, "heading", self._level)
        else:
            self.builder.add(text, "list_item" if self._is_item else "paragraph")
        self._text = []


def _main_part(reader: XmlReader) -> str:
    found = "word/document.xml"

    def relationship(name: str, attributes: Mapping[str, str]) -> None:
        nonlocal found
        if name == "Relationship" and attributes.get("Type", "").endswith("/officeDocument"):
            found = attributes.get("Target", found).lstrip("/")

    reader.read("_rels/.rels", relationship)
    return found


def _heading_levels(reader: XmlReader) -> dict[str, int]:
    """Levels of the styles that are headings, by the styles' ids."""
    levels: dict[str, int] = {}
    style = ""

    def start(name: str, attributes: Mapping[str, str]) -> None:
        nonlocal style
        if name == "style":
            style = attributes.get("styleId", "")
        elif name == "name" and style:
            value = attributes.get("val", "")
            if heading := _HEADING_STYLE.match(value):
                levels[style] = int(heading[1])
            elif value.lower() == "title":
                levels[style] = 1

    reader.read("word/styles.xml", start)
    return levels


def _title(reader: XmlReader) -> str:
    parts: list[str] = []
    inside = False

    def start(name: str, _: Mapping[str, str]) -> None:
        nonlocal inside
        inside = name == "title"

    def end(_: str) -> None:
        nonlocal inside
        inside = False

    reader.read("docProps/core.xml", start, end, lambda text: parts.append(text) if inside else None)
    return "".join(parts).strip()
