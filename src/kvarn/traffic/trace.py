"""Recorded traffic as conversations: when requests came, how long they were, which blocks their prompts shared.

Read as it is played: an hour of a million requests is never in memory as a whole. The formats are in `formats.py` and
`weka.py`; docs/reference/traffic.md describes them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from typing import Literal

from kvarn.traffic.conversation import Conversation, Traffic
from kvarn.traffic.entries import TraceError, conversations
from kvarn.traffic.formats import azure_entries, burstgpt_entries, mooncake_entries
from kvarn.traffic.weka import weka_conversation

TraceFormat = Literal["auto", "azure", "burstgpt", "mooncake", "weka"]


def open_trace(path: Path, form: TraceFormat = "auto") -> Traffic:
    """The conversations of a trace, the first at 0 s: a file, or a folder of Weka files. The file is open meanwhile.

    Raises, some of it while it is read:
        TraceError: The file cannot be read, is empty, or a line is not of the format.
    """
    any_read = False
    try:
        for each in _read(path, form):
            any_read = True
            yield each
    except OSError as error:
        raise TraceError(f"cannot read the trace {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"the trace {path} is not text of a known format: {error}") from None
    if not any_read:
        raise TraceError(f"the trace {path} holds no requests")


def form_of(path: Path, form: TraceFormat = "auto") -> TraceFormat:
    """The format of a trace, by its beginning. Raises `TraceError`."""
    if form != "auto":
        return form
    if path.is_dir():
        return "weka"
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            return _form(lines.readline())
    except OSError as error:
        raise TraceError(f"cannot read the trace {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise TraceError(f"the trace {path} is not text of a known format: {error}") from None


def parse_trace(lines: Iterator[str], form: TraceFormat = "auto") -> Traffic:
    """The conversations of a trace's lines."""
    first = next(lines, None)
    if first is None:
        return iter(())
    form = _form(first) if form == "auto" else form
    rest = chain([first], lines)
    if form == "weka":
        return _weka_lines(rest)
    parse = {"azure": azure_entries, "burstgpt": burstgpt_entries, "mooncake": mooncake_entries}[form]
    return conversations(parse(rest))


def _form(first: str) -> TraceFormat:
    if not first.lstrip().startswith("{"):
        return "burstgpt" if "request tokens" in first.lower() else "azure"
    return "mooncake" if '"input_length"' in first else "weka"


def _read(path: Path, form: TraceFormat) -> Traffic:
    form = form_of(path, form)
    if path.is_dir():
        numbers = count()
        for file in sorted(path.glob("*.json*")):
            yield from _weka_file(file, numbers)
        return
    if form == "weka":
        yield from _weka_file(path, count())
        return
    with path.open(encoding="utf-8", newline="") as lines:
        yield from parse_trace(iter(lines), form)


def _weka_file(path: Path, numbers: Iterator[int]) -> Iterator[Conversation]:
    with path.open(encoding="utf-8") as lines:
        first = lines.readline()
        if first.strip() and not first.strip().endswith("}"):  # one object over many lines
            yield weka_conversation(first + lines.read(), next(numbers), str(path))
            return
        yield from _weka_lines(chain([first], lines), numbers, f"{path}, ")


def _weka_lines(lines: Iterator[str], numbers: Iterator[int] | None = None, where: str = "") -> Iterator[Conversation]:
    numbers = count() if numbers is None else numbers
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield weka_conversation(line, next(numbers), f"{where}line {number} of the trace")
