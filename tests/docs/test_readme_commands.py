"""Commands of the README that a guide explains: they stand there too, where a test runs them."""

from __future__ import annotations

import pytest

from printed_commands import ROOT, printed

TESTED = {"plan": "docs/guides/plan.md", "simulate": "docs/guides/simulate.md"}
"""Guides whose printed commands are run."""


@pytest.mark.parametrize("command", TESTED)
def test_a_command_stands_in_its_guide(command: str):
    told = [arguments for page, arguments in printed("kvarn") if arguments[:1] == [command] and page == "README.md"]
    guide = [arguments for page, arguments in printed("kvarn") if page == TESTED[command]]
    assert told, (ROOT / "README.md").name
    assert all(arguments in guide for arguments in told), told
