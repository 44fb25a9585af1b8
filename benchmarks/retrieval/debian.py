"""Debian's documentation packages as sets: real pages, with their own indexes and titles as weak judgements.

`apt-get download` fetches a package; nothing is installed.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from selectolax.lexbor import LexborHTMLParser, LexborNode

from benchmarks.retrieval.sets import JudgedSet, Page, Question
from kvarn.retrieval.types import Block

PACKAGES = {
    "postgresql-doc-15": "usr/share/doc/postgresql-doc-15/html",
    "debian-reference-en": "usr/share/debian-reference",
}
_BOXES = ("Note", "Tip", "Caution", "Warning", "Important")
_SHORTEST = 300
"""Characters of a section that is asked for."""


@dataclass(slots=True)
class _Section:
    page: str
    title: str
    parts: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)


def fetch(package: str, cache: Path) -> Path:
    """The folder of a package's pages, downloaded the first time. Raises CalledProcessError: it cannot be."""
    folder = cache / package
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        subprocess.run(["apt-get", "download", package], cwd=folder, check=True, capture_output=True)
        subprocess.run(["dpkg-deb", "-x", str(next(folder.glob("*.deb"))), str(folder)], check=True)
        (folder / "complete").touch()
    return folder / PACKAGES[package]


def read_package(package: str, cache: Path, questions: int, pages: int, seed: int = 7) -> JudgedSet:
    """Sections of a package's pages. Questions are entries of its index, else titles, which are then left out of the
    texts. Of the sections those that are asked for stay, and others by chance, `pages` in all."""
    folder = fetch(package, cache)
    has_index = (folder / "bookindex.html").exists()
    paths = [path for path in sorted(folder.glob("*.html")) if path.name not in ("bookindex.html", "index.html")]
    sections = [section for path in paths for section in _sections(path)]
    found: dict[str, Page] = {}
    named: dict[str, str] = {}
    for number, section in enumerate(sections):
        page = _page(section, with_title=has_index)
        if len(page.text) >= _SHORTEST:
            name = f"{number:05d}"
            found[name] = page
            named |= {f"{section.page}#{each}": name for each in section.ids}
            named.setdefault(f"{section.page}#", name)
    asked = _index(folder / "bookindex.html", named) if has_index else _titles(sections, found)
    rng = random.Random(seed)
    chosen = rng.sample(asked, min(questions, len(asked)))
    kept = {page for question in chosen for page, _, _ in question.spans}
    others = [name for name in found if name not in kept]
    kept.update(rng.sample(others, max(0, min(pages - len(kept), len(others)))))
    shown = {name: page for name, page in found.items() if name in kept}
    return JudgedSet(package, shown, tuple(chosen), by_page=True)


def _sections(path: Path) -> list[_Section]:
    """A page cut at its headings, in the order of its elements."""
    tree = LexborHTMLParser(path.read_text(encoding="utf-8", errors="replace"))
    for node in tree.css(".navheader, .navfooter, .toc, script, style, title"):
        node.decompose()
    found = [_Section(path.name, "")]
    waiting: set[str] = set()
    if tree.body is not None:
        for node in tree.body.traverse(include_text=True):
            if _is_heading(node):
                found.append(_Section(path.name, _title(node)))
                found[-1].ids |= waiting
                waiting = set()
            elif node.tag == "-text":
                text = node.text_content or ""
                if text.strip() and not _in_heading(node):
                    found[-1].ids |= waiting
                    waiting = set()
                    found[-1].parts.append(text)
            elif (name := node.attributes.get("id")) is not None:
                waiting.add(name)
            if node.tag in ("p", "pre", "li", "dt", "dd", "tr", "div"):
                found[-1].parts.append("\n\n")
    return found


def _is_heading(node: LexborNode) -> bool:
    return node.tag in ("h1", "h2", "h3", "h4") and node.text().strip() not in _BOXES


def _title(node: LexborNode) -> str:
    return re.sub(r"^[\W\d.]*(?:Chapter \d+\.)?\s*", "", " ".join(node.text().split()))


def _in_heading(node: LexborNode) -> bool:
    parent = node.parent
    while parent is not None:
        if _is_heading(parent):
            return True
        parent = parent.parent
    return False


def _page(section: _Section, *, with_title: bool) -> Page:
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", "".join(section.parts))]
    shown = [section.title, *parts] if with_title else parts
    text, blocks = "", []
    for part in filter(None, shown):
        blocks.append(Block(len(text), len(text) + len(part), "heading" if with_title and not text else "paragraph"))
        text += f"{part}\n\n"
    return Page(text, tuple(blocks))


def _index(path: Path, named: dict[str, str]) -> list[Question]:
    """Entries of DocBook's index that have one place: `term, part of it` and the section that it names."""
    tree = LexborHTMLParser(path.read_text(encoding="utf-8"))
    questions = []
    for entry in tree.css("dt"):
        links = [link for link in entry.css("a.indexterm") if link.attributes.get("href")]
        if len(links) != 1:
            continue
        page, _, anchor = (links[0].attributes["href"] or "").partition("#")
        words = " ".join([*_terms_above(entry), _term(entry)])
        target = named.get(f"{page}#{anchor}")
        if target is not None and len(words.split()) > 1:
            questions.append(Question(f"i{len(questions):05d}", words, ((target, 0, 0),)))
    return questions


def _term(entry: LexborNode) -> str:
    text = entry.text(deep=False) or ""
    return " ".join(text.split()).strip(" ,;(")


def _terms_above(entry: LexborNode) -> Iterator[str]:
    """The term of an entry whose place is a part of it: `<dt>term</dt><dd><dl><dt>part`."""
    above = entry.parent.parent if entry.parent is not None else None
    if above is not None and above.tag == "dd":
        before = above.prev
        while before is not None and before.tag != "dt":
            before = before.prev
        if before is not None:
            yield _term(before)


def _titles(sections: list[_Section], pages: dict[str, Page]) -> list[Question]:
    questions = []
    for number, section in enumerate(sections):
        name = f"{number:05d}"
        if name in pages and len(section.title.split()) > 1:
            questions.append(Question(f"t{len(questions):05d}", section.title, ((name, 0, 0),)))
    return questions
