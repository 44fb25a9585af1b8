"""Every page of the console has its pictures, in both themes and widths, and they stay small."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/operate/console_pages.md"
REGISTRY = ROOT / "console/src/pages/registry.ts"
MAX_BYTES = 2_500_000


def test_every_page_is_shown_in_both_themes_and_widths() -> None:
    pages = re.findall(r'\{ name: "(\w+)"', REGISTRY.read_text(encoding="utf-8"))
    assert len(pages) >= 10
    named = {"session" if page == "sessions" else page for page in pages}
    wanted = {f"{page}-{width}-{theme}.webp" for page in named for width in (1280, 390) for theme in ("light", "dark")}
    shown = set(re.findall(r'(?:srcset|src)="console/([\w.-]+)"', PAGE.read_text(encoding="utf-8")))
    pictures = {each.name: each.stat().st_size for each in (PAGE.parent / "console").iterdir()}
    assert wanted <= shown <= pictures.keys()
    assert sum(pictures.values()) <= MAX_BYTES
