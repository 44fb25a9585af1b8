"""Text, Markdown and source code: the text stays as it is, blocks are found in its lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvarn.retrieval.parsing.outcome import BlockKind, Parsed, ParsedBlock, check_blocks, check_length, cleaned

_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]|$)")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_LIST_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+\S")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")

Line = tuple[int, str]
"""Offset of its first character, and the line without its end."""


def parse_text(text: str, max_characters: int) -> Parsed:
    """Paragraphs between empty lines. Raises RefusedError, as all parsers do."""
    return _build(text, _paragraphs(text, "paragraph"), "text-1", max_characters)


def parse_code(text: str, max_characters: int) -> Parsed:
    """Groups of lines between empty ones before a line that is not indented."""
    return _build(text, _paragraphs(text, "code", only_before_unindented=True), "code-1", max_characters)


def parse_markdown(text: str, max_characters: int) -> Parsed:
    """Headings, paragraphs, items of lists, tables and code in fences."""
    text = cleaned(text)
    blocks = list(_markdown_blocks(text))
    first = next((block for block in blocks if block.kind == "heading"), None)
    title = text[first.start : first.end].split("\n")[0].strip("# \t") if first is not None else ""
    return _build(text, iter(blocks), "markdown-1", max_characters, title)


def _build(text: str, blocks: Iterator[ParsedBlock], parser: str, most: int, title: str = "") -> Parsed:
    check_length(len(text), most)
    found: list[ParsedBlock] = []
    for block in blocks:
        check_blocks(len(found))
        found.append(block)
    return Parsed(cleaned(text), found, parser, title[:500])


def _lines(text: str) -> Iterator[Line]:
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield start, text[start:end]
        start = end + 1


def _paragraphs(text: str, kind: BlockKind, *, only_before_unindented: bool = False) -> Iterator[ParsedBlock]:
    text = cleaned(text)
    start: int | None = None
    end = 0
    after_empty = False
    for offset, line in _lines(text):
        if not line.strip():
            after_empty = True
            continue
        if start is not None and after_empty and not (only_before_unindented and line[0] in " \t})]"):
            yield ParsedBlock(start, end, kind, 0, None)
            start = None
        start = offset if start is None else start
        end = offset + len(line)
        after_empty = False
    if start is not None:
        yield ParsedBlock(start, end, kind, 0, None)


class _Open:
    """The block that the lines so far belong to."""

    def __init__(self) -> None:
        self.start = self.end = 0
        self.kind: BlockKind | None = None

    def close(self) -> Iterator[ParsedBlock]:
        if self.kind is not None:
            yield ParsedBlock(self.start, self.end, self.kind, 0, None)
        self.kind = None

    def extend(self, kind: BlockKind, offset: int, line: str) -> None:
        if self.kind is None:
            self.start, self.kind = offset, kind
        self.end = offset + len(line)


def _markdown_blocks(text: str) -> Iterator[ParsedBlock]:
    block = _Open()
    fence = ""
    for offset, line in _lines(text):
        if fence:
            block.extend("code", offset, line)
            if line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
                yield from block.close()
        elif opening := _FENCE.match(line):
            yield from block.close()
            fence = opening[1]
            block.extend("code", offset, line)
        elif not line.strip():
            yield from block.close()
        elif heading := _HEADING.match(line):
            yield from block.close()
            yield ParsedBlock(offset, offset + len(line), "heading", len(heading[1]), None)
        elif block.kind == "paragraph" and (underline := _UNDERLINE.match(line)):
            yield ParsedBlock(block.start, offset + len(line), "heading", 1 if underline[1][0] == "=" else 2, None)
            block.kind = None
        else:
            yield from _markdown_line(block, offset, line)
    yield from block.close()


def _markdown_line(block: _Open, offset: int, line: str) -> Iterator[ParsedBlock]:
    """A line of a paragraph, of a list or of a table."""
    if _LIST_ITEM.match(line):
        yield from block.close()
        block.extend("list_item", offset, line)
    elif line.lstrip().startswith("|"):
        if block.kind != "table":
            yield from block.close()
        block.extend("table", offset, line)
    else:
        if block.kind == "table":
            yield from block.close()
        block.extend("paragraph", offset, line)
