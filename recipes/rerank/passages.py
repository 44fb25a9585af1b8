"""Passages to train on: docstrings of Python's standard library and of libraries that the test extra installs.

They are read where they are installed, trained on, and copied nowhere. This repository's pages and the documentation
packages of Debian that the benchmark searches are not among them.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIBRARIES = ("networkx", "numpy", "peft", "scipy", "sklearn", "sympy", "torch", "transformers")
_LONGEST, _SHORTEST = 80, 12
"""Words of a passage."""
_LEFT_OUT = re.compile(r"/(tests?|idlelib|lib2to3|test_[^/]*)/")


@dataclass(frozen=True, slots=True)
class Passage:
    name: str
    """The function or class it explains, with its module."""
    lead: str
    """The first sentence of its docstring."""
    text: str
    sentences: tuple[str, ...]

    @property
    def held_out(self) -> bool:
        """Whether training never sees it: a fortieth, by a hash of its text."""
        return hashlib.sha256(self.text.encode()).digest()[0] < 6


def read_passages() -> list[Passage]:
    """All passages, each text once, in the order of files and lines."""
    standard, installed = (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))
    files = [path for path in sorted(standard.rglob("*.py")) if "-packages" not in str(path)]
    files += [path for name in LIBRARIES for path in sorted((installed / name).rglob("*.py"))]
    found: dict[str, Passage] = {}
    for path in files:
        if not _LEFT_OUT.search(str(path)):
            for passage in _of_file(path):
                found.setdefault(passage.text, passage)
    return list(found.values())


def _of_file(path: Path) -> Iterator[Passage]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = path.stem if isinstance(node, ast.Module) else f"{path.stem} {node.name}"
            yield from _of_docstring(name, ast.get_docstring(node) or "")


def _of_docstring(name: str, docstring: str) -> Iterator[Passage]:
    prose = [_plain(part) for part in re.split(r"\n\s*\n", docstring) if _is_prose(part)]
    sentences = [sentence for part in prose for sentence in re.split(r"(?<=[.:?!])\s+(?=[A-Z`])", part)]
    lead = sentences[0] if sentences else ""
    part: list[str] = []
    for sentence in sentences:
        if part and sum(len(each.split()) for each in [*part, sentence]) > _LONGEST:
            yield from _passage(name, lead, part)
            part = []
        part.append(sentence)
    yield from _passage(name, lead, part)


def _passage(name: str, lead: str, sentences: list[str]) -> Iterator[Passage]:
    words = sum(len(each.split()) for each in sentences)
    if _SHORTEST <= words <= 2 * _LONGEST:
        yield Passage(name, lead, " ".join(sentences), tuple(sentences))


def _is_prose(part: str) -> bool:
    words = re.findall(r"[A-Za-z]{2,}", part)
    return len(words) >= 4 and ">>>" not in part and sum(map(len, words)) > 0.6 * len(re.sub(r"\s", "", part))


def _plain(part: str) -> str:
    part = re.sub(r":[a-z:]+:`~?([^`]*)`", r"\1", part)
    part = re.sub(r"^\s*(?:[-=~^]{3,}|\.\. \w+::.*|:\w+:)\s*$", " ", part, flags=re.MULTILINE)
    return " ".join(part.replace("``", "").replace("`", "").split())
