"""The text of a file with its blocks, as the parsers write it, and the reasons for which there is none."""

from __future__ import annotations

from typing import Literal

import msgspec

BlockKind = Literal["heading", "paragraph", "list_item", "table", "code"]
Code = Literal["unsupported_file", "invalid_file", "server_error"]
"""Codes of OpenAI's `last_error` of a file in a vector store."""

MAX_BLOCKS = 500_000


class ParsedBlock(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A block of a `Document`, in the same order of fields."""

    start: int
    end: int
    kind: BlockKind
    level: int
    page: int | None


class Parsed(msgspec.Struct, frozen=True, tag=True):
    text: str
    blocks: list[ParsedBlock]
    parser: str
    title: str = ""


class Unreadable(msgspec.Struct, frozen=True, tag=True):
    code: Code
    message: str


class RefusedError(Exception):
    """A file that a parser does not read; the message is a sentence for whoever uploaded it."""

    def __init__(self, message: str, code: Code = "invalid_file") -> None:
        super().__init__(message)
        self.code: Code = code


class TextBuilder:
    """Puts a text together from blocks. Raises RefusedError where it grows beyond a limit."""

    def __init__(self, max_characters: int) -> None:
        self._max_characters = max_characters
        self._parts: list[str] = []
        self._length = 0
        self._blocks: list[ParsedBlock] = []

    def add(self, text: str, kind: BlockKind = "paragraph", level: int = 0, page: int | None = None) -> None:
        """Add a block; white space around it, and a block of nothing else, is left out."""
        text = cleaned(text).strip()
        if not text:
            return
        if self._blocks:
            follows_its_like = kind in ("list_item", "table") and self._blocks[-1].kind == kind
            self._append("\n" if follows_its_like else "\n\n")
        start = self._length
        self._append(text)
        check_blocks(len(self._blocks))
        self._blocks.append(ParsedBlock(start, self._length, kind, level, page))

    def build(self, parser: str, title: str = "") -> Parsed:
        return Parsed("".join(self._parts), self._blocks, parser, cleaned(title).strip()[:500])

    def _append(self, text: str) -> None:
        self._parts.append(text)
        self._length += len(text)
        check_length(self._length, self._max_characters)


def check_length(length: int, most: int) -> None:
    """Raises RefusedError."""
    if length > most:
        raise RefusedError(f"The file has more than {most:,} characters of text. Split it into several files.")


def check_blocks(count: int) -> None:
    """Raises RefusedError."""
    if count >= MAX_BLOCKS:
        raise RefusedError(f"The file has more than {MAX_BLOCKS:,} paragraphs or rows. Split it into several files.")


def cleaned(text: str) -> str:
    """The text without what a database or a JSON encoder refuses: NULs and halves of surrogate pairs."""
    text = text.replace("\0", "")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text
