"""Lines of CSV that a spreadsheet opens without running what clients wrote."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of a cell that spreadsheets would run."""


def csv_lines(rows: Iterable[Sequence[object]]) -> bytes:
    """Rows as lines; None is an empty cell, and a text that would be a formula gets a `'` before it."""
    text = io.StringIO()
    csv.writer(text).writerows([[_cell(value) for value in row] for row in rows])
    return text.getvalue().encode()


def csv_headers(name: str) -> dict[str, str]:
    """Headers of an answer that a browser saves as `NAME-2026-11-27.csv`."""
    named = f'attachment; filename="{name}-{datetime.now(UTC):%Y-%m-%d}.csv"'
    return {"content-type": "text/csv; charset=utf-8", "content-disposition": named}


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
