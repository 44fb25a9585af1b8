"""The order in which idle blocks go, against a plain look at all of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.engine.memory.block_value import LOOKS, ByValue
from kvarn.engine.memory.prefix_cache import PrefixNode
from kvarn.engine.sessions.branch import Branch
from kvarn.wire.block_names import PrefixScope
from profiles import examples

BLOCKS = 12


def kept_nodes(count: int) -> dict[int, PrefixNode]:
    """Leaves of sessions' paths, each of a session of its own."""
    nodes = {block: PrefixNode(PrefixScope(), 0, None, (block,), block) for block in range(count)}
    for node in nodes.values():
        node.branch = Branch()
    return nodes


def seconds(node: PrefixNode | None) -> float:
    assert node is not None
    return 1.0 + node.block * 7 % 5


@settings(max_examples=examples(300), derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from(["release", "use", "evict", "wait"]), st.integers(0, BLOCKS - 1)), max_size=60)
)
def test_the_least_valuable_idle_block_goes_whatever_came_and_went_at_the_same_moment(changes):
    nodes = kept_nodes(BLOCKS)
    order = ByValue(nodes, seconds)
    now, releases, idle = 1.0, 0, {}
    for change, block in changes:
        if change == "wait":
            now += 1.0
        elif change == "release" and block not in idle:
            releases += 1
            idle[block] = releases
            order.add(block, now)
        elif change == "use" and block in idle:
            del idle[block]
            order.discard(block)
        elif change == "evict":
            cheapest = min(idle, key=lambda each: (seconds(nodes[each]), idle[each]), default=None)
            assert order.first(now) == cheapest
            if cheapest is not None:
                del idle[cheapest]
                order.discard(cheapest)
        order.check_integrity()


def test_all_of_many_go_at_one_moment():
    count = 5 * LOOKS
    order = ByValue(kept_nodes(count), seconds)
    for block in range(count):
        order.add(block, 1.0)
    gone = set()
    while (block := order.first(2.0)) is not None:
        gone.add(block)
        order.discard(block)
    assert gone == set(range(count))
    assert len(order) == 0
