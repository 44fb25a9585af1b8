from __future__ import annotations

import pytest

from kvarn.routing.round_robin import next_ready


@pytest.mark.parametrize(
    ("ready", "last", "expected"),
    [
        ([True], -1, 0),
        ([True], 0, 0),
        ([True, True, True], 0, 1),
        ([True, True, True], 2, 0),
        ([True, False, True], 0, 2),
        ([False, True], 1, 1),
        ([False, False], 0, None),
        ([], -1, None),
    ],
)
def test_the_next_ready_replica_is_picked_in_turn(ready: list[bool], last: int, expected: int | None) -> None:
    assert next_ready(ready, last) == expected
