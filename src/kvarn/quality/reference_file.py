"""The file of expected answers, with which later starts of the server compare."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from kvarn.quality.expected import Question
from kvarn.quality.probe import GoldenAnswer


class ReferenceFileError(Exception):
    """The file cannot be read."""


class _Entry(msgspec.Struct, frozen=True):
    question: Question
    answer: GoldenAnswer


def read_reference(path: Path) -> dict[Question, GoldenAnswer]:
    """The answers in a file; none where there is no file. Raises `ReferenceFileError`."""
    try:
        entries = msgspec.json.decode(path.read_bytes(), type=list[_Entry])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise ReferenceFileError(
            f"{path} cannot be read as expected answers ({error}): delete it, or name another `quality.reference_file`"
        ) from None
    return {entry.question: entry.answer for entry in entries}


def write_reference(path: Path, answers: Mapping[Question, GoldenAnswer]) -> None:
    """Replace the file by one with these answers, or leave it as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_bytes(msgspec.json.encode([_Entry(question, answer) for question, answer in list(answers.items())]))
    new.replace(path)
