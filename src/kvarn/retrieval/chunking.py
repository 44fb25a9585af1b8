"""Chunks of a document: by its structure, and by tokens.

A document is cut into pieces, which cover its text: sentences, lines of code and rows of tables, parts of those that
are too long. A chunk is a run of pieces.

* A block (paragraph, list item, table) that fits into a chunk is never divided.
* A heading begins a chunk where the one before is a quarter full, so that short sections share one; a heading never
  ends a chunk.
* Where a section is longer than a chunk, the next one begins with the last whole pieces of the one before, up to
  `overlap` tokens.
* A chunk knows the headings above it. Rows of a divided table know the table's first row, as the last of those.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from kvarn.retrieval.types import Block, Chunk, Document

CHUNKER = "chunks-1"
"""Version of the algorithm: part of a chunk's identity, since another one gives other offsets."""

CountTokens = Callable[[str], int]

_SENTENCE = re.compile(r"""[.!?]["')\]]*\s+|[。！？…]["'）」』]*\s*|\n\s*\n\s*""")
_LINE = re.compile(r"\n\s*")
_WORD = re.compile(r"\s+")
_BY_LINES = ("table", "code")
_SECTION = " > "
_MAX_TITLE_CHARS, _MAX_SECTION_CHARS = 200, 600
_FULL_ENOUGH = 4
"""A heading begins a chunk where the one before has at least its size divided by this."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Text that is never divided, with the whitespace behind it."""

    start: int
    end: int
    tokens: int
    block: int
    """Place of its block in the document."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A block, or text between two, with what stands above it."""

    block: Block
    section: str
    header: tuple[int, int] | None
    """First row of the table that it is."""


def chunk(document: Document, count_tokens: CountTokens, max_tokens: int, overlap: int) -> list[Chunk]:
    """Divide a document.

    Args:
        document: What was read from a file. Its blocks are in order; text between them is taken as paragraphs.
        count_tokens: Tokens of a text. Called once for each piece: a chunk's tokens are the sum over its pieces.
        max_tokens: Of a chunk, at most.
        overlap: Tokens that a chunk has in common with the one before it in a section, at most; up to half of
            `max_tokens`.

    Returns:
        Chunks in order; of an empty document none. Together they cover all but whitespace.
    """
    parts = list(_parts(document))
    ends = [*(part.block.start for part in parts), len(document.text)][1:]
    pieces = [
        piece
        for number, (part, end) in enumerate(zip(parts, ends, strict=True))
        for piece in _pieces(document.text, part.block, end, number, count_tokens, max_tokens)
    ]
    packed = _Packing(parts, max_tokens, min(overlap, max_tokens // 2))
    runs = packed.pack(pieces)
    return [_chunk(document.text, parts, run, ordinal) for ordinal, run in enumerate(runs)]


def _parts(document: Document) -> Iterator[_Part]:
    """Blocks in order, and paragraphs of the text that is in none."""
    titles: list[tuple[int, str]] = []
    header: tuple[int, int] | None = None
    end = 0
    ends = Block(len(document.text), len(document.text))
    for block in (*document.blocks, ends):
        start, stop = max(end, block.start), min(block.end, len(document.text))
        if (between := _stripped(document.text, Block(end, start))) is not None:
            header = None
            yield _Part(between, _joined(titles), None)
        end = max(end, stop)
        whole = _stripped(document.text, Block(start, stop, block.kind, block.level, block.page))
        if whole is None:
            continue
        if block.kind == "heading":
            level = max(1, block.level)
            titles = [each for each in titles if each[0] < level]
            yield _Part(whole, _joined(titles), None)
            title = " ".join(document.text[whole.start : whole.end].lstrip("#").split())[:_MAX_TITLE_CHARS]
            titles.append((level, title))
            header = None
            continue
        header = (header or _first_row(document.text, whole)) if block.kind == "table" else None
        yield _Part(whole, _joined(titles), header)


def _stripped(text: str, block: Block) -> Block | None:
    """A block without the whitespace around it; None: there is nothing else."""
    text = text[block.start : block.end]
    inner = text.strip()
    start = block.start + len(text) - len(text.lstrip())
    return Block(start, start + len(inner), block.kind, block.level, block.page) if inner else None


def _first_row(text: str, block: Block) -> tuple[int, int]:
    end = text.find("\n", block.start, block.end)
    return block.start, block.end if end < 0 else end


def _joined(titles: list[tuple[int, str]]) -> str:
    return _SECTION.join(title for _, title in titles)[-_MAX_SECTION_CHARS:]


def _pieces(text: str, block: Block, end: int, number: int, count: CountTokens, max_tokens: int) -> Iterator[_Piece]:
    """Pieces of a block and of the whitespace behind it, up to `end`."""
    ending = _LINE if block.kind in _BY_LINES else _SENTENCE
    for begin, stop in _cut(text, block.start, end, ending):
        tokens = count(text[begin:stop])
        if tokens <= max_tokens:
            yield _Piece(begin, stop, tokens, number)
        else:
            yield from _divided(text, begin, stop, tokens, number, count, max_tokens)


def _cut(text: str, start: int, end: int, ending: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    while start < end:
        found = ending.search(text, start, end)
        stop = end if found is None else found.end()
        yield start, stop
        start = stop


def _divided(
    text: str, start: int, end: int, tokens: int, number: int, count: CountTokens, max_tokens: int
) -> Iterator[_Piece]:
    """Parts of what is too long for a chunk, between words where there are any; parts that are only whitespace are left
    out. Each is measured a few times at most: the first guess is by the characters that a token has here."""
    size = max(1, (end - start) * max_tokens // (2 * tokens))
    while start < end:
        stop, length = min(end, start + size), size
        while True:
            if stop < end:
                spaces = [found.end() for found in _WORD.finditer(text, start + length // 2, stop)]
                stop = spaces[-1] if spaces else stop
            found_tokens = count(text[start:stop])
            if found_tokens <= max_tokens or stop - start == 1:
                break
            length = max(1, (stop - start) // 2)
            stop = start + length
        if not text[start:stop].isspace():
            yield _Piece(start, stop, min(found_tokens, max_tokens), number)
        start = stop


class _Packing:
    """Fills chunks with pieces."""

    def __init__(self, parts: list[_Part], max_tokens: int, overlap: int) -> None:
        self._parts = parts
        self._max = max_tokens
        self._overlap = overlap
        self._run: list[_Piece] = []
        self._tokens = 0
        self._new = 0
        """Pieces of the run that are in no chunk before it."""
        self._done: list[list[_Piece]] = []

    def pack(self, pieces: list[_Piece]) -> list[list[_Piece]]:
        for block in _by_block(pieces):
            size = sum(piece.tokens for piece in block)
            is_heading = self._parts[block[0].block].block.kind == "heading"
            if is_heading and self._tokens * _FULL_ENOUGH >= self._max:
                self._close(overlapping=False)
            if size <= self._max and self._follows(block):
                if self._tokens + size > self._max:  # whole in the next one
                    self._close(overlapping=True, room=self._max - size)
                self._add(block)
                continue
            for piece in block:
                if not self._follows([piece]):
                    self._close(overlapping=False)
                if self._tokens + piece.tokens > self._max:
                    self._close(overlapping=True, room=self._max - piece.tokens)
                self._add([piece])
        if self._new:
            self._done.append(self._run)
        return self._done

    def _follows(self, pieces: list[_Piece]) -> bool:
        """Whether nothing was left out before or between these pieces."""
        return all(before.end == after.start for before, after in pairwise([*self._run[-1:], *pieces]))

    def _add(self, pieces: list[_Piece]) -> None:
        self._run += pieces
        self._tokens += sum(piece.tokens for piece in pieces)
        self._new += len(pieces)

    def _close(self, *, overlapping: bool, room: int = 0) -> None:
        """End the chunk; the next begins with the headings at its end, or with its last pieces, as far as there is
        `room` for them."""
        if not self._new:  # nothing but what the chunk before has, too
            self._run, self._tokens = [], 0
            return
        run = self._run
        last = len(run)
        while last and self._is_heading(run[last - 1]):
            last -= 1
        carried = run[last:] if 0 < last < len(run) else []
        if overlapping and sum(piece.tokens for piece in carried) > room:
            carried = []
        self._done.append(run[: len(run) - len(carried)])
        self._new = len(carried)
        self._run = carried or (self._tail(run, room) if overlapping else [])
        self._tokens = sum(piece.tokens for piece in self._run)

    def _tail(self, run: list[_Piece], room: int) -> list[_Piece]:
        first, left = len(run), min(self._overlap, room)
        while first > 1 and run[first - 1].tokens <= left and not self._is_heading(run[first - 1]):
            first -= 1
            left -= run[first].tokens
        return run[first:]

    def _is_heading(self, piece: _Piece) -> bool:
        return self._parts[piece.block].block.kind == "heading"


def _by_block(pieces: list[_Piece]) -> Iterator[list[_Piece]]:
    run: list[_Piece] = []
    for piece in pieces:
        if run and run[-1].block != piece.block:
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


def _chunk(text: str, parts: list[_Part], run: list[_Piece], ordinal: int) -> Chunk:
    part, start = parts[run[0].block], run[0].start
    end = start + len(text[start : run[-1].end].rstrip())
    section = part.section
    if part.header is not None and part.header[0] < start:
        row = " ".join(text[part.header[0] : part.header[1]].split())[:_MAX_TITLE_CHARS]
        section = _SECTION.join(filter(None, (section, row)))
    tokens = sum(piece.tokens for piece in run)
    return Chunk(ordinal, start, end, text[start:end], tokens, section, part.block.page)


def embedded_text(chunk: Chunk) -> str:
    """Text of which a chunk's vector is made: the headings above it say what it is about."""
    return f"{chunk.section}\n{chunk.text}" if chunk.section else chunk.text
