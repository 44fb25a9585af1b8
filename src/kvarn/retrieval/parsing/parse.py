"""Parsing of a file in a sandbox of its own."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass
from typing import IO

import msgspec

from kvarn.retrieval.parsing.child import OUT_OF_MEMORY
from kvarn.retrieval.parsing.outcome import Code, Parsed, Unreadable
from kvarn.retrieval.types import Block, Document
from kvarn.sandbox.bubblewrap import Outcome, Program, ProgramLimits, find_bubblewrap, kvarn_path, limits_alone
from kvarn.sandbox.errors import NoSandboxError, SandboxBrokenError

_log = logging.getLogger(__name__)

_DECODER = msgspec.msgpack.Decoder(Parsed | Unreadable)
_MODULE = "kvarn.retrieval.parsing.child"


@dataclass(frozen=True, slots=True)
class ParseLimits:
    """Bounds of the parsing of one file."""

    max_characters: int = 20_000_000
    memory_bytes: int = 1024**3
    processor_s: int = 30
    timeout_s: float = 150.0
    """Longer than the processor's time: the machine may be busy."""
    without_sandbox: bool = False
    """Whether parsers of PDF, HTML and Office files run without a sandbox where none can be had."""


class UnreadableFileError(Exception):
    """A file that no text can be taken from; the message is a sentence for whoever uploaded it."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code


async def parse(data: IO[bytes], filename: str, media_type: str, limits: ParseLimits = ParseLimits()) -> Document:
    """The text of an open file and its blocks. Called from the event loop's thread. Raises UnreadableFileError."""
    try:
        runner, libraries = await asyncio.to_thread(find_bubblewrap), True
    except NoSandboxError:
        runner, libraries = limits_alone(), limits.without_sandbox
    arguments = (_suffix(filename), _plain(media_type), str(limits.max_characters), "yes" if libraries else "no")
    program = Program(_MODULE, kvarn_path(), arguments=arguments)
    bounds = ProgramLimits(
        memory_bytes=limits.memory_bytes,
        processor_s=limits.processor_s,
        timeout_s=limits.timeout_s,
        output_bytes=6 * limits.max_characters + 2**20,
    )
    try:
        outcome = await runner.run(program, bounds, data)
    except SandboxBrokenError as error:
        raise UnreadableFileError("server_error", f"The sandbox for parsing did not start: {error}") from None
    return await asyncio.to_thread(_document, outcome, limits)


def _document(outcome: Outcome, limits: ParseLimits) -> Document:
    """The child is not trusted: what it wrote is checked like a client's input."""
    if outcome.limit is not None or outcome.status != 0:
        raise _failure(outcome, limits)
    try:
        found = _DECODER.decode(outcome.output)
    except msgspec.DecodeError:
        raise UnreadableFileError("invalid_file", "The file made its parser write something else.") from None
    if isinstance(found, Unreadable):
        raise UnreadableFileError(found.code, found.message)
    end = 0
    for block in found.blocks:
        if not end <= block.start < block.end <= len(found.text):
            raise UnreadableFileError("invalid_file", "The file made its parser write something else.")
        end = block.end
    blocks = tuple(Block(each.start, each.end, each.kind, each.level, each.page) for each in found.blocks)
    return Document(found.text, blocks, found.parser, found.title)


def _failure(outcome: Outcome, limits: ParseLimits) -> UnreadableFileError:
    _log.info("a parser ended: %s", outcome.errors[-2000:].decode(errors="replace") or outcome)
    if outcome.status == OUT_OF_MEMORY:
        mib = limits.memory_bytes // 2**20
        return UnreadableFileError("invalid_file", f"The file takes more than {mib} MiB of memory to read. Split it.")
    if outcome.limit == "output":
        return UnreadableFileError("invalid_file", "The file has too much text. Split it into several files.")
    if outcome.limit is not None:
        message = (
            f"The file takes more than {limits.processor_s} s of a processor to read. Split it into several files."
        )
        return UnreadableFileError("invalid_file", message)
    return UnreadableFileError("invalid_file", "The file is damaged: its parser failed.")


def _suffix(filename: str) -> str:
    found = re.search(r"\.([A-Za-z0-9]{1,16})$", filename)
    return found[1].lower() if found else ""


def _plain(media_type: str) -> str:
    return re.sub(r"[^!-~ ]", "", media_type)[:200]
