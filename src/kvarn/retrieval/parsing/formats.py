"""The format of a file: by its content first, then by its name, then by the media type that it was sent with."""

from __future__ import annotations

import codecs
import re
import zipfile
from typing import BinaryIO, Literal

from kvarn.retrieval.parsing.archives import UNREADABLE
from kvarn.retrieval.parsing.outcome import RefusedError

Format = Literal["text", "markdown", "html", "csv", "code", "pdf", "docx", "xlsx"]

LIBRARIES_NEEDED: frozenset[Format] = frozenset({"html", "pdf", "docx", "xlsx"})
"""Formats whose parsers are large or old: they run in a sandbox or, if that is allowed expressly, without."""

_HEAD_BYTES = 64 * 1024

_CODE = (
    "json jsonl ndjson yaml yml toml ini xml c h cc cpp cxx hpp cs css go java js jsx mjs kt lua php pl py rb rs scala "
    "sh bash sql swift ts tsx r jl proto tex"
)
_BY_SUFFIX: dict[str, Format] = {
    **dict.fromkeys(("md", "markdown", "mdx"), "markdown"),
    **dict.fromkeys(("html", "htm", "xhtml"), "html"),
    **dict.fromkeys(("csv", "tsv"), "csv"),
    **dict.fromkeys(_CODE.split(), "code"),
}
_BY_MEDIA_TYPE: dict[str, Format] = {
    "text/markdown": "markdown",
    "text/html": "html",
    "application/xhtml+xml": "html",
    "text/csv": "csv",
    "text/tab-separated-values": "csv",
    "application/json": "code",
}
_OFFICE_FOLDERS: tuple[tuple[str, Format], ...] = (("word/", "docx"), ("xl/", "xlsx"))
_SUPPORTED = "Text, Markdown, HTML, PDF, DOCX, XLSX, CSV, JSON and source code are read."
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_DECLARED = re.compile(
    rb"""<meta[^>]{0,200}charset\s*=\s*["']?([\w.:-]{1,40})|encoding=["']([\w.:-]{1,40})["']""", re.I
)
_READ_ENCODINGS = re.compile(r"utf-8|ascii|iso8859|cp\d|gb|big5|euc|shift_jis|koi8|mac", re.I)
"""By the codec's own name: those that take time in proportion to the text."""
_HTML_START = re.compile(r"\s*(<!--(?:(?!-->).){0,2000}-->\s*)*<(!doctype\s+html|html|head|body)\b", re.I | re.S)


def find_format(file: BinaryIO, suffix: str, media_type: str) -> Format:
    """The format of a file. `suffix` is that of its name, in lower case without the dot. Raises RefusedError."""
    head = file.read(_HEAD_BYTES)
    file.seek(0)
    if b"%PDF-" in head[:1024]:
        return "pdf"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _format_of_zip(file)
    if head.startswith(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"):
        raise _ole_error(file)
    if _mark_of(head) is None and b"\0" in head:
        raise RefusedError(f"The file is binary and of a format that is not read. {_SUPPORTED}", "unsupported_file")
    named = _BY_SUFFIX.get(suffix) or _BY_MEDIA_TYPE.get(media_type.partition(";")[0].strip().lower())
    if named is not None:
        return named
    return "html" if _HTML_START.match(head.decode("latin-1")) else "text"


def decode_text(data: bytes, media_type: str = "") -> str:
    """The text of a file: by its byte order mark, as UTF-8, by what it declares, else as Latin-1. Lines end in a line
    feed. Raises RefusedError."""
    if (encoding := _mark_of(data)) is not None:
        try:
            text = data.decode(encoding).removeprefix("\ufeff")
        except UnicodeDecodeError:
            raise RefusedError(f"The file begins with the mark of {encoding.upper()} and is not in it.") from None
    else:
        text = _decode_unmarked(data, media_type)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _decode_unmarked(data: bytes, media_type: str) -> str:
    found = _DECLARED.search(data[:4096])
    declared = (found[1] or found[2]).decode() if found else media_type.lower().partition("charset=")[2].strip('" ;')
    for encoding in ("utf-8", declared):
        try:
            if encoding and _READ_ENCODINGS.match(codecs.lookup(encoding).name):
                return data.decode(encoding)
        except (LookupError, UnicodeDecodeError, ValueError):
            continue
    return data.decode("latin-1")


def _mark_of(data: bytes) -> str | None:
    return next((encoding for mark, encoding in _MARKS if data.startswith(mark)), None)


def _format_of_zip(file: BinaryIO) -> Format:
    try:
        with zipfile.ZipFile(file) as archive:
            names = set(archive.namelist())
    except UNREADABLE:
        raise RefusedError("The file is a damaged or truncated archive (DOCX, XLSX).") from None
    finally:
        file.seek(0)
    if "[Content_Types].xml" in names:
        for folder, found in _OFFICE_FOLDERS:
            if any(name.startswith(folder) for name in names):
                return found
    raise RefusedError(f"Archives are not read: upload the files in it. {_SUPPORTED}", "unsupported_file")


def _ole_error(file: BinaryIO) -> RefusedError:
    if "EncryptedPackage".encode("utf-16-le") in file.read(2**20):
        return RefusedError("The file is encrypted. Upload it without a password.")
    return RefusedError(
        "The file is of an old format of Office. Save it as DOCX, XLSX or PDF and upload that.", "unsupported_file"
    )
