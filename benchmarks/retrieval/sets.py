"""Sets of documents and questions with judged answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvarn.retrieval.parsing.plain import parse_markdown
from kvarn.retrieval.types import Block

FOLDER = Path(__file__).parent
PAGES = FOLDER.parents[1] / "docs"


@dataclass(frozen=True, slots=True)
class Page:
    """A document as its parser would give it: `kvarn.retrieval.types.Document`."""

    text: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Question:
    id: str
    text: str
    spans: tuple[tuple[str, int, int], ...]
    """Documents, and the characters there that answer."""


@dataclass(frozen=True, slots=True)
class JudgedSet:
    name: str
    pages: Mapping[str, Page]
    questions: tuple[Question, ...]
    by_page: bool = False
    """Whether any chunk of a judged document answers: judgements of titles and indexes tell no sentence."""


def read_docs() -> JudgedSet:
    """This repository's pages, with questions that were written and judged by hand. Raises ValueError: a quote does not
    stand in its page exactly once."""
    pages = {name: markdown_page(read_page(name)) for name in page_names()}
    spans: dict[tuple[str, str], list[tuple[str, int, int]]] = {}
    for row in read_questions():
        found = find_quote(pages[row["page"]].text, row["quote"])
        if len(found) != 1:
            raise ValueError(f"{row['id']}: {row['page']} has {len(found)} times {row['quote']!r}")
        spans.setdefault((row["id"], row["question"]), []).append((row["page"], *found[0]))
    return JudgedSet("docs", pages, tuple(Question(*key, tuple(each)) for key, each in spans.items()))


def find_quote(text: str, quote: str) -> list[tuple[int, int]]:
    """Places of a quote in a text, whose lines may be divided elsewhere."""
    pattern = r"\s+".join(map(re.escape, quote.split()))
    return [found.span() for found in re.finditer(pattern, text)]


def page_names() -> list[str]:
    """All pages but the internal ones, which repeat what the others say."""
    names = (path.relative_to(PAGES).as_posix() for path in sorted(PAGES.glob("*/*.md")))
    return [name for name in names if not name.startswith("internals/")]


def read_questions() -> list[dict[str, str]]:
    """Rows of questions.tsv: id, question, page, quote. A question with several answers has several rows."""
    head, *rows = (FOLDER / "docs" / "questions.tsv").read_text(encoding="utf-8").splitlines()
    names = head.split("\t")
    return [dict(zip(names, row.split("\t"), strict=True)) for row in rows]


def read_page(name: str) -> str:
    """A page without the addresses of its links."""
    return re.sub(r"\]\([^)\s]*\)", "]", (PAGES / name).read_text(encoding="utf-8"))


def markdown_page(text: str) -> Page:
    """A page of Markdown, read as Kvarn reads an uploaded one."""
    parsed = parse_markdown(text, max_characters=10_000_000)
    blocks = tuple(Block(each.start, each.end, each.kind, each.level, each.page) for each in parsed.blocks)
    return Page(parsed.text, blocks)
