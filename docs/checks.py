"""Rules that no linter knows: file length, pages up to date, links that lead somewhere, words in names.

Usage: python docs/checks.py
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 400
_OPENING = re.compile(r"\s*(Of|That|What|Whose|Who|Whom|As|How|Where|When)\b")
_INVERTED = re.compile(r"(?:^|[.!?]\s+|^[|*>-]\s+|\|\s+)(?:Of|That)\b", re.MULTILINE)
_SOURCE = re.compile(r"`(?:src|tests|csrc)/|`(?!deploy/|examples/)[\w/]+\.(?:py|h)`")
_FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def long_files() -> list[str]:
    """Source files that have grown past one story."""
    found = []
    folders = [(folder, "*.py") for folder in ("src", "tests", "benchmarks", "recipes", "docs", "examples", "deploy")]
    for folder, pattern in [*folders, ("console/src", "*.*"), ("console/tests", "*.*"), ("console/e2e", "*.*")]:
        for path in sorted((ROOT / folder).rglob(pattern)):
            lines = path.read_text(encoding="utf-8").count("\n")
            if lines > MAX_LINES:
                found.append(
                    f"{path.relative_to(ROOT)}: {lines} lines; past {MAX_LINES} a file has two stories: split it"
                )
    return found


def pages() -> list[Path]:
    """Markdown pages for readers."""
    named = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md", "benchmarks/README.md")]
    return [*named, *sorted((ROOT / "docs").rglob("*.md"))]


def broken_links() -> list[str]:
    """Relative links in Markdown pages that name no file."""
    found = []
    for page in pages():
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not (page.parent / target).exists():
                found.append(f"{page.relative_to(ROOT)}: the link to {target} leads nowhere")
    return found


def pages_out_of_the_way() -> list[str]:
    """Pages of docs/ that the navigation of the site does not name, and names there that are no page."""
    named = set(re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    there = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    lost = [f"docs/{page}: name it in the navigation of mkdocs.yml, under its task" for page in sorted(there - named)]
    return lost + [f"mkdocs.yml: there is no docs/{page}" for page in sorted(named - there)]


def source_in_user_pages() -> list[str]:
    """Files of the source in pages for users: how it is made and was tested is told in docs/internals."""
    found = []
    for folder in ("start", "guides", "operate"):
        for page in sorted((ROOT / "docs" / folder).rglob("*.md")):
            for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
                if _SOURCE.search(line):
                    found.append(f"{page.relative_to(ROOT)}:{number}: names the source: move it to docs/internals")
    return found


def inverted_sentences() -> list[str]:
    """Sentences of pages that begin with Of or That."""
    found = []
    for page in pages():
        text = _FENCED.sub(lambda block: "\n" * block[0].count("\n"), page.read_text(encoding="utf-8"))
        for match in _INVERTED.finditer(text):
            line = text.count("\n", 0, match.end()) + 1
            found.append(f"{page.relative_to(ROOT)}:{line}: a sentence begins with {match[0][-4:].strip()}")
    return found


def loop_times() -> list[str]:
    """Reads of an event loop's time: a clock is taken instead (ruff bans those of the module `time`)."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if re.search(r"loop(\(\))?\.time\(", line):
                found.append(f"{path.relative_to(ROOT)}:{number}: reads the loop's time: take a clock (kvarn.clock)")
    return found


def unclear_openings() -> list[str]:
    """Docstrings, help texts and messages that do not begin with a noun or a verb."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _OPENING.match(node.value):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: begin the text with a noun or a verb")
    return found


def public_names() -> Iterator[tuple[str, str]]:
    """Names of packages, modules, public classes and public functions, each with its file."""
    for path in sorted((ROOT / "src/kvarn").rglob("*.py")):
        if "versions" in path.parts:  # migrations: named once and never again
            continue
        where = str(path.relative_to(ROOT))
        yield where, path.parent.name if path.stem == "__init__" else path.stem
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith(
                "_"
            ):
                yield where, node.name


def words_of(text: str) -> set[str]:
    """The words in a name or a text, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", text)}


def unknown_words(names: Iterable[tuple[str, str]], known: set[str]) -> list[str]:
    """Public names with a word that neither the glossary nor the list of ordinary words has, in any form."""
    endings = ("", "s", "es", "d", "ed", "ing", "r", "er", "rs", "ers")
    found = []
    for where, name in names:
        for word in sorted(words_of(name)):
            if not any(word.removesuffix(ending) in known for ending in endings if word.endswith(ending)):
                found.append(
                    f"{where}: {word!r} in {name!r} is not known: use a term of the field, explain it in "
                    "docs/reference/glossary.md, or add it to docs/tools/words.txt if it is an ordinary word"
                )
    return found


def known_words() -> set[str]:
    """Words in bold in the glossary, and those of the list beside it."""
    glossary = (ROOT / "docs/reference/glossary.md").read_text(encoding="utf-8")
    ordinary = (ROOT / "docs/tools/words.txt").read_text(encoding="utf-8")
    return {word for term in re.findall(r"\*\*([^*]+)\*\*", glossary) for word in words_of(term)} | set(
        ordinary.split()
    )


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    problems = long_files() + broken_links() + pages_out_of_the_way() + inverted_sentences()
    problems += source_in_user_pages() + loop_times() + unclear_openings()
    problems += unknown_words(public_names(), known_words())
    generated = subprocess.run([sys.executable, str(ROOT / "docs/generate.py"), "--check"], check=False)
    for problem in problems:
        print(problem)
    return 1 if problems or generated.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
