"""JSON Schema's own test suite: no answer is invalid, and few valid examples cannot be written."""

from __future__ import annotations

import pytest
from benchmarks.schema_suite import DIRECTORY, counted

from profiles import effort

NOT_WRITTEN = {
    "unevaluatedItems": 4,
    "unevaluatedProperties": 1,
    "format: email": 5,
    "format: hostname": 1,
    "format: ipv6": 4,
    "format: time": 3,
}
"""Valid examples that grammars leave out; docs/internals/measured_engine.md tells which."""


@pytest.mark.skipif(not DIRECTORY.is_dir(), reason="the suite is not there: make schema-suite")
def test_the_suite_of_draft_2020_12() -> None:
    counts = counted(effort(5, 500), seed=1)
    assert [each for count in counts.values() for each in count.invalid] == []
    left_out = {name: len(count.unwritten) for name, count in counts.items() if count.unwritten}
    assert left_out == NOT_WRITTEN, {name: counts[name].unwritten for name in left_out}
    assert sum(count.schemas - count.refused for count in counts.values()) >= 222
    assert sum(count.answers for count in counts.values()) > effort(1000, 100_000)
