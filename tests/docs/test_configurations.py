"""Configurations that pages print are taken as they are printed."""

from __future__ import annotations

import re

import pytest

from kvarn.config.schema import KvarnConfig
from kvarn.config.yaml import parse_yaml
from printed_commands import PAGES, ROOT

OTHERS = {
    *("docs/guides/coding_agents.md", "docs/operate/kubernetes.md"),
    *("docs/guides/simulate.md", "docs/guides/simulate_fleet.md"),
}
"""Pages with configurations of other programs, values of the chart (tests/deploy), and scenarios (tests/simulator)."""
_YAML = re.compile(r"^```yaml\n((?!apiVersion:)\S.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(_YAML.findall(page.read_text(encoding="utf-8")))
    if str(page.relative_to(ROOT)) not in OTHERS
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_printed_configuration_is_valid(block) -> None:
    KvarnConfig.model_validate(parse_yaml(block.replace("!file ", "")))
