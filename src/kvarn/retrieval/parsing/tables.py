"""Tables: a row is a block, in which each value follows its column's name, so that a chunk can be read alone."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from kvarn.retrieval.parsing.archives import check_archive
from kvarn.retrieval.parsing.outcome import Parsed, RefusedError, TextBuilder

_MAX_CELL_CHARACTERS = 1_000_000
_DELIMITERS = ",;\t|"


def parse_csv(text: str, max_characters: int) -> Parsed:
    """The delimiter is the one of comma, semicolon, tab and bar that the first line has most of."""
    first, _, _ = text.partition("\n")
    delimiter = max(_DELIMITERS, key=first[:10_000].count)
    csv.field_size_limit(_MAX_CELL_CHARACTERS)
    builder = TextBuilder(max_characters)
    try:
        _add_rows(builder, csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as error:
        raise RefusedError(f"The table cannot be read: {error}.") from None
    return builder.build("csv-1")


def parse_xlsx(file: BinaryIO, max_characters: int) -> Parsed:
    """All sheets, with the values that formulas had when the file was saved."""
    check_archive(file)
    try:
        import openpyxl
    except ImportError:
        raise RefusedError("Reading XLSX needs the extra `xlsx`: pip install 'kvarn[xlsx]'.", "server_error") from None
    builder = TextBuilder(max_characters)
    try:
        book = openpyxl.load_workbook(file, read_only=True, data_only=True, keep_links=False)
        for sheet in book.worksheets:
            sheet.reset_dimensions()  # they are what the file says, not what it has
            builder.add(sheet.title, "heading", 1)
            _add_rows(builder, sheet.iter_rows(values_only=True))
        title = book.properties.title or ""
    except (RefusedError, MemoryError):
        raise
    except Exception as error:  # whatever openpyxl meets in a file that is no workbook
        raise RefusedError(f"The workbook cannot be read: {type(error).__name__}.") from None
    return builder.build(f"xlsx-1 openpyxl {openpyxl.__version__}", title)


def _add_rows(builder: TextBuilder, rows: Iterable[Sequence[object]]) -> None:
    """The first row that is not empty names the columns."""
    names: list[str] | None = None
    for number, row in enumerate(rows, start=1):
        cells = ["" if cell is None else " ".join(str(cell).split()) for cell in row]
        if not any(cells):
            continue
        if names is None:
            names = cells
            builder.add(" | ".join(cells), "table", page=number)
            continue
        pairs = [
            f"{names[column]}: {cell}" if column < len(names) and names[column] else cell
            for column, cell in enumerate(cells)
            if cell
        ]
        builder.add("; ".join(pairs), "table", page=number)
