"""Files of settings that pages print are ones that Kvarn takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvarn.config.load import load_config
from printed_commands import PAGES, ROOT

_BLOCK = re.compile(r"^```yaml\n(\w.*?)^```", re.MULTILINE | re.DOTALL)
_SECTION = re.compile(
    r"^(?:models|routes|gateway|fleet|auth|store|limits|metering|safety|admission|quality|rollout|traces|alerts):",
    re.MULTILINE,
)
FOLDERS = ("start", "guides")
PRINTED = [
    pytest.param(block, id=f"{page.parent.name}/{page.stem}-{number}")
    for page in PAGES
    if page.parent.name in FOLDERS
    for number, block in enumerate(_BLOCK.findall(page.read_text(encoding="utf-8")))
    if _SECTION.match(block)
]


def test_pages_print_settings() -> None:
    assert len(PRINTED) > 15, [ROOT, PRINTED]


@pytest.mark.parametrize("block", PRINTED)
def test_a_printed_file_of_settings_is_taken(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvarn.config.load.missing_extra_of", lambda config: None)
    path = tmp_path / "kvarn.yaml"
    path.write_text(block, encoding="utf-8")
    load_config(path)
