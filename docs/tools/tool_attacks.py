"""Runs the attacks on tools and writes what held: `python docs/tools/tool_attacks.py` from the root of a checkout.

An attack is a test marked `attack(kind)`. One that is marked with `through` shows what is not held: it fails once that
is held after all.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[1] / "internals" / "tool_attacks.md"
TESTS = "tests/tools"
_BEGIN, _END = "<!-- results: docs/tools/tool_attacks.py -->", "<!-- end of results -->"


class Outcomes:
    """A plugin that counts how the attacks of each kind ended."""

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.through: dict[str, list[str]] = defaultdict(list)
        self._marks: dict[str, Any] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._marks = {item.nodeid: item.get_closest_marker("attack") for item in items}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        mark = self._marks.get(report.nodeid)
        if mark is None or report.when != "call":
            return
        kind = mark.args[0]
        if report.failed:
            self.failed[kind] += 1
        elif "through" in mark.kwargs:
            self.through[kind].append(mark.kwargs["through"])
        else:
            self.held[kind] += 1

    def lines(self) -> list[str]:
        kinds = sorted({*self.held, *self.failed, *self.through})
        rows = [
            f"| {kind} | {self.held[kind] + self.failed[kind] + len(self.through[kind])} | {self.held[kind]} | "
            f"{self.failed[kind]} | {len(self.through[kind])} |"
            for kind in kinds
        ]
        known = [f"* {kind}: {why}." for kind in kinds for why in self.through[kind]]
        held, failed, through = self.held.total(), self.failed.total(), len(known)
        sums = f"| together | {held + failed + through} | {held} | {failed} | {through} |"
        head = ["| kind | attacks | held | not held, a defect | not held, known |", "|---|---|---|---|---|"]
        return [*head, *rows, sums, "", "Not held, and known:", "", *known]


def main() -> int:
    outcomes = Outcomes()
    sys.path.insert(0, str(PAGE.parents[2]))  # as `python -m pytest` does
    ended = pytest.main(["-q", "-m", "attack", TESTS], plugins=[outcomes])
    if ended not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return int(ended)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    results = "\n".join(["", *outcomes.lines(), ""])
    PAGE.write_text(f"{before}{_BEGIN}\n{results}\n{_END}{after}", encoding="utf-8")
    return int(bool(outcomes.failed))


if __name__ == "__main__":
    sys.exit(main())
