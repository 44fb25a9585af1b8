"""The documentation as a site: it builds without a warning, needs nothing from elsewhere, and fits into the package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_BYTES = 5_000_000  # as the package holds it: compressed
ELSEWHERE = re.compile(
    r"""<(?:script|link|img|iframe|source|video)\b[^>]*?\s(?:src|href)=["']?(?:https?:)?//[^"'>\s]*"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the built site."""
    program = shutil.which("zensical", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("zensical is not installed: `make site` installs it")
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    shutil.copytree(ROOT / "docs", folder / "docs")
    done = subprocess.run([program, "build", "--strict"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "build/site"


def test_every_page_is_built_and_found_by_the_search(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md")}
    built = {page.parent.relative_to(site) for page in site.rglob("index.html")}
    assert built == {page.parent if page.name == "index" else page for page in pages}
    index = (site / "search.json").read_text(encoding="utf-8")
    assert all(f'"{page}/' in index for page in map(str, pages - {Path("index")}))


def test_no_page_asks_another_server_for_anything(site: Path) -> None:
    found = [found for page in site.rglob("*.html") for found in ELSEWHERE.findall(page.read_text(encoding="utf-8"))]
    assert found == []
    styles = "".join(style.read_text(encoding="utf-8") for style in site.rglob("*.css"))
    assert re.findall(r"url\([\"']?(?:https?:)?//|@import", styles) == []


def test_the_site_fits_into_the_package(site: Path) -> None:
    contents = (path.read_bytes() for path in site.rglob("*") if path.is_file())
    assert sum(min(len(content), len(zlib.compress(content))) for content in contents) < MAX_BYTES
