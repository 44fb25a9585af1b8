"""The program that reads one file: `child.py SUFFIX MEDIA_TYPE MAX_CHARACTERS LIBRARIES`, in a sandbox.

Standard input is the file, standard output what was found, as MessagePack. LIBRARIES is `yes` or `no`: without a
sandbox only formats that need none are read.
"""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

import msgspec

from kvarn.retrieval.parsing.formats import LIBRARIES_NEEDED, Format, decode_text, find_format
from kvarn.retrieval.parsing.outcome import Parsed, RefusedError, Unreadable, check_length

_MOST_BYTES_OF_CHARACTER = 4
OUT_OF_MEMORY = 3
"""Exit status; `parse` knows it."""


def read_file(file: BinaryIO, suffix: str, media_type: str, max_characters: int, *, libraries: bool) -> Parsed:
    """Read a file. Raises RefusedError."""
    found = find_format(file, suffix, media_type)
    if found in LIBRARIES_NEEDED and not libraries:
        raise RefusedError(
            f"Reading {found.upper()} needs a sandbox, and this server has none (`kvarn doctor` says why). Its "
            "operator can install bubblewrap, or set sandbox.parse_without.",
            "server_error",
        )
    parsed = _parse(found, file, media_type, max_characters)
    if not parsed.blocks:
        why = " Its pages are pictures: text in them is not recognised." if found == "pdf" else ""
        raise RefusedError(f"The file has no text.{why}")
    return parsed


def _parse(found: Format, file: BinaryIO, media_type: str, max_characters: int) -> Parsed:
    from kvarn.retrieval.parsing import docx, html, pdf, plain, tables

    if found == "pdf":
        return pdf.parse_pdf(file, max_characters)
    if found == "docx":
        return docx.parse_docx(file, max_characters)
    if found == "xlsx":
        return tables.parse_xlsx(file, max_characters)
    check_length(os.fstat(file.fileno()).st_size // _MOST_BYTES_OF_CHARACTER, max_characters)  # before it is in memory
    text = decode_text(file.read(), media_type)
    if found == "html":
        return html.parse_html(text, max_characters)
    if found == "csv":
        return tables.parse_csv(text, max_characters)
    if found == "markdown":
        return plain.parse_markdown(text, max_characters)
    return plain.parse_code(text, max_characters) if found == "code" else plain.parse_text(text, max_characters)


def main(arguments: list[str]) -> None:
    suffix, media_type, max_characters, libraries = arguments
    file = os.fdopen(0, "rb")
    outcome: Parsed | Unreadable
    try:
        outcome = read_file(file, suffix, media_type, int(max_characters), libraries=libraries == "yes")
        written = msgspec.msgpack.encode(outcome)
    except RefusedError as error:
        written = msgspec.msgpack.encode(Unreadable(error.code, str(error)))
    except MemoryError:
        os._exit(OUT_OF_MEMORY)  # unwinding would need memory
    sys.stdout.buffer.write(written)
    sys.stdout.buffer.flush()
    os._exit(0)  # libraries need not clean up what the end of the process does


if __name__ == "__main__":
    main(sys.argv[1:])
