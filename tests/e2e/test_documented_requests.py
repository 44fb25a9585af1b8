"""The requests that pages print for curl run as they are printed, in the order of each page, by curl."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from printed_commands import PAGES, ROOT, commands_of

HOST = re.compile(r"(?:http://)?(?:localhost|127\.0\.0\.1):8000")
LINES = re.compile(r"cat > (\S+) <<'EOF'\n(.*?)EOF\n", re.DOTALL)
OTHERS = {"docs/guides/auth.md", "docs/guides/evaluation.md", "docs/guides/metering.md", "docs/operate/live.md"}
"""Pages whose requests need keys, prices, an answer to give feedback on, or do not end: tests/identity,
tests/evaluations, tests/metering, tests/gateway/console."""
WITH_CURL = [
    page
    for page in PAGES
    if any(command.lstrip().startswith("curl ") for command in commands_of(page.read_text(encoding="utf-8")))
    and str(page.relative_to(ROOT)) not in OTHERS
]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in WITH_CURL])
def test_the_requests_of_a_page_are_answered(server, page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name, content in LINES.findall(text):
        (tmp_path / name).write_text(content, encoding="utf-8")
    (tmp_path / "requests.jsonl").touch()
    ids: dict[str, str] = {}
    for command in commands_of(text):
        if not command.lstrip().startswith("curl "):
            continue
        here = HOST.sub(server.url, command)
        for beginning, whole in ids.items():
            here = here.replace(f"{beginning}…", whole)
        here = here.replace("curl ", "curl --silent --show-error --fail-with-body ", 1)
        done = subprocess.run(
            ["bash", "-c", here], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        ids |= _ids(done.stdout)


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("start/install.md", "42"),
        ("guides/structured_output.md", "born="),
        ("guides/caching.md", "hit"),
        ("guides/vector_stores.md", "platform nine"),
        ("guides/hosted_tools.md", "three crowns"),
    ],
)
def test_the_program_of_a_page_prints_its_answer(server, page: str, printed: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", HOST.sub(server.url, program)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and printed in done.stdout, done.stderr


def _ids(answer: str) -> dict[str, str]:
    """The id of an answer's object, by the letters that it begins with."""
    try:
        made = json.loads(answer)["id"]
    except (ValueError, KeyError, TypeError):
        return {}
    found = re.match(r"[a-z]+[_-]", made)
    return {} if found is None else {found[0]: made}
