"""Commands that pages print, in blocks of shell and indented lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "examples/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(?:bash|sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^    (?=kvarn |\.venv/bin/|make |python |curl )(.*)$", re.MULTILINE)
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"")


def commands_of(text: str) -> Iterator[str]:
    """Each command of a page, whole: continued lines and quoted ones are one command."""
    for block in [*_BLOCK.findall(text), *_INDENTED.findall(text)]:
        whole = ""
        for line in block.replace("\\\n", " ").splitlines():
            whole = f"{whole}\n{line}" if whole else line
            if not _QUOTED.sub("", whole).count("'"):
                yield whole
                whole = ""


def printed(program: str) -> Iterator[tuple[str, list[str]]]:
    """What pages print for one program: the page, and the arguments. Pipes, lists and comments are left out."""
    for page in PAGES:
        for command in commands_of(page.read_text(encoding="utf-8")):
            for part in re.split(r"\s(?:&&|\||&|>)\s?", command):
                if part.strip().startswith(f"{program} "):
                    yield str(page.relative_to(ROOT)), shlex.split(part.strip(), comments=True)[1:]
