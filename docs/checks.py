"""House rules that no linter knows: file length, pages up to date, links that lead somewhere.

Usage: python docs/checks.py
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 400


def long_files() -> list[str]:
    """Source files that have grown past one story."""
    found = []
    for folder in ("src", "tests", "benchmarks", "recipes", "docs", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            lines = path.read_text(encoding="utf-8").count("\n")
            if lines > MAX_LINES:
                found.append(
                    f"{path.relative_to(ROOT)}: {lines} lines; past {MAX_LINES} a file has two stories: split it"
                )
    return found


def broken_links() -> list[str]:
    """Relative links in Markdown pages that name no file."""
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not (page.parent / target).exists():
                found.append(f"{page.relative_to(ROOT)}: the link to {target} leads nowhere")
    return found


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    problems = long_files() + broken_links()
    generated = subprocess.run([sys.executable, str(ROOT / "docs/generate.py"), "--check"], check=False)
    for problem in problems:
        print(problem)
    return 1 if problems or generated.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
