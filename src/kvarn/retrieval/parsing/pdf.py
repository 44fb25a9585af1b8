"""PDF: the text of its pages by PDFium; lines in a larger font than most are headings."""

from __future__ import annotations

import ctypes
from collections import Counter
from typing import BinaryIO, NamedTuple

from kvarn.retrieval.parsing.outcome import Parsed, RefusedError, TextBuilder

_MAX_PAGES = 10_000
_HEADING_SIZE = 1.15
"""A heading's font is so many times the size of the text's."""
_MAX_HEADING_CHARACTERS = 200
_HYPHEN = "\ufffe"
"""PDFium's mark for a hyphen at a line's end."""


class _Line(NamedTuple):
    text: str
    size: float
    """Points, of the font of its first letter."""
    page: int


def parse_pdf(file: BinaryIO, max_characters: int) -> Parsed:
    """Paragraphs end at empty lines, at pages, and where a line stops short after a full stop. Raises RefusedError."""
    try:
        import pypdfium2
    except ImportError:
        needed = "Reading PDF needs the extra `retrieval`: pip install 'kvarn[retrieval]'."
        raise RefusedError(needed, "server_error") from None
    try:
        document = pypdfium2.PdfDocument(file)
        pages = len(document)
    except pypdfium2.PdfiumError as error:
        if error.err_code == pypdfium2.raw.FPDF_ERR_PASSWORD:
            raise RefusedError("The PDF is encrypted. Upload it without a password.") from None
        raise RefusedError("The PDF is damaged or truncated.") from None
    if pages > _MAX_PAGES:
        raise RefusedError(f"The PDF has {pages:,} pages; at most {_MAX_PAGES:,} are read. Split it.")
    lines: list[_Line] = []
    left = max_characters
    for number in range(pages):
        try:
            found = _page_lines(document[number], number + 1)
        except pypdfium2.PdfiumError:
            continue  # a page that is missing or damaged: the others are read
        left -= sum(len(line.text) for line in found)
        if left < 0:
            raise RefusedError(f"The file has more than {max_characters:,} characters of text. Split it.")
        lines += found
    builder = TextBuilder(max_characters)
    _add_blocks(builder, lines)
    version = pypdfium2.version.PYPDFIUM_INFO
    return builder.build(f"pdf-1 pypdfium2 {version}", document.get_metadata_value("Title") or "")


def _page_lines(page: object, number: int) -> list[_Line]:
    import pypdfium2

    text_page = page.get_textpage()  # type: ignore[attr-defined]
    try:
        text = text_page.get_text_range()
        lines, start = [], 0
        for line in text.split("\n"):
            size = pypdfium2.raw.FPDFText_GetFontSize(text_page.raw, ctypes.c_int(start)) if line.strip() else 0.0
            lines.append(_Line(line.rstrip("\r"), round(float(size), 1), number))
            start += len(line) + 1
        return lines
    finally:
        text_page.close()
        page.close()  # type: ignore[attr-defined]


def _add_blocks(builder: TextBuilder, lines: list[_Line]) -> None:
    letters: Counter[float] = Counter()
    for line in lines:
        letters[line.size] += len(line.text)
    usual = letters.most_common(1)[0][0] if letters else 0.0
    larger = sorted({line.size for line in lines if usual and line.size >= _HEADING_SIZE * usual}, reverse=True)
    widest = max((len(line.text) for line in lines if line.size == usual), default=0)
    paragraph: list[_Line] = []

    def end_paragraph() -> None:
        if paragraph:
            builder.add(_joined(paragraph), page=paragraph[0].page)
            paragraph.clear()

    for line in lines:
        if paragraph and paragraph[-1].page != line.page:
            end_paragraph()
        if not line.text.strip():
            end_paragraph()
        elif line.size in larger and len(line.text) <= _MAX_HEADING_CHARACTERS:
            end_paragraph()
            builder.add(line.text, "heading", min(larger.index(line.size) + 1, 6), line.page)
        else:
            paragraph.append(line)
            if line.text.rstrip().endswith((".", ":", "?", "!")) and len(line.text) < 0.8 * widest:
                end_paragraph()
    end_paragraph()


def _joined(lines: list[_Line]) -> str:
    text = "\n".join(line.text.rstrip() for line in lines)
    return text.replace(_HYPHEN + "\n", "").replace(_HYPHEN, "-")
