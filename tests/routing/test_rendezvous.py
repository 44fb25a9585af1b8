from __future__ import annotations

import math
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.routing.policies import order_by_rank, rank
from profiles import examples

NAMES = st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=8, unique=True)


@settings(max_examples=examples(200))
@given(st.binary(max_size=20), NAMES, st.data())
def test_when_a_replica_goes_the_others_keep_their_order(key: bytes, names: list[str], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(names))
    assert [name for name in rank(key, names) if name != gone] == rank(key, [name for name in names if name != gone])


@settings(max_examples=examples(100))
@given(NAMES, st.lists(st.binary(min_size=1, max_size=4), max_size=100), st.floats(1.05, 3))
def test_no_replica_has_more_than_its_bound(names: list[str], keys: list[bytes], balance: float) -> None:
    loads = dict.fromkeys(names, 0)
    for placed, key in enumerate(keys, 1):
        order = order_by_rank(key, loads, balance)
        assert sorted(order) == sorted(names)
        loads[order[0]] += 1
        assert max(loads.values()) <= math.ceil(balance * placed / len(names))


def test_keys_spread_evenly_and_stay_where_they_are_without_load() -> None:
    names = [f"replica-{number}" for number in range(4)]
    idle = dict.fromkeys(names, 0)
    firsts = [order_by_rank(str(number).encode(), idle)[0] for number in range(4000)]
    assert firsts == [rank(str(number).encode(), names)[0] for number in range(4000)]
    counts = Counter(firsts)
    assert all(880 < counts[name] < 1120 for name in names), "six standard deviations of 27"
    assert order_by_rank(b"x", {}) == []
