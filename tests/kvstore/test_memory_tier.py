"""Blocks in memory: a bounded number, the least recently used one given away first, pinned ones never."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.kvstore import MemoryTier
from profiles import examples


def put(tier: MemoryTier, name: bytes, tenant: str = "acme", *, keep_pinned: bool = False) -> bool:
    contents = tier.take(name, tenant)
    if contents is None:
        return False
    contents[:] = name * (len(contents) // len(name))
    tier.publish(name)
    if not keep_pinned:
        tier.unpin(name)
    return True


def test_the_least_recently_used_block_makes_room() -> None:
    tier = MemoryTier(2, 8, 2)
    put(tier, b"a")
    put(tier, b"b")
    tier.pin(b"a")
    tier.unpin(b"a")
    put(tier, b"c")
    assert [name in tier for name in (b"a", b"b", b"c")] == [True, False, True]
    assert tier.evictions == 1


def test_a_pinned_block_stays_and_one_more_is_refused_where_all_are_pinned() -> None:
    tier = MemoryTier(1, 8, 1)
    put(tier, b"a", keep_pinned=True)
    assert not put(tier, b"b")
    tier.unpin(b"a")
    assert put(tier, b"b")


def test_a_tenant_makes_room_for_itself_once_it_has_its_share() -> None:
    tier = MemoryTier(4, 8, 2)
    put(tier, b"o", "other")
    for name in (b"a", b"b", b"c"):
        put(tier, name)
    assert [name in tier for name in (b"o", b"a", b"b", b"c")] == [True, False, True, True]


def test_a_block_that_was_taken_cannot_be_seen_before_it_has_its_contents() -> None:
    tier = MemoryTier(1, 8, 1)
    tier.take(b"a", "acme")
    assert b"a" not in tier
    tier.unpin(b"a")
    assert not tier.is_here(b"a")
    assert len(tier) == 0


def test_a_forgotten_tenants_blocks_are_gone_those_in_use_with_their_last_pin() -> None:
    tier = MemoryTier(3, 8, 3)
    put(tier, b"a")
    put(tier, b"b", keep_pinned=True)
    put(tier, b"o", "other")
    tier.forget("acme")
    assert [name in tier for name in (b"a", b"b", b"o")] == [False, False, True]
    assert bytes(tier.contents(b"b")) == b"b" * 8, "whoever loads it now may end that"
    tier.unpin(b"b")
    assert len(tier) == 1


@settings(max_examples=examples(100))
@given(
    steps=st.lists(st.tuples(st.sampled_from(["put", "pin", "unpin", "forget"]), st.integers(0, 9)), max_size=60),
    share=st.integers(1, 4),
)
def test_every_visible_block_has_its_own_contents_and_no_bound_is_passed(steps: list, share: int) -> None:
    tier, pinned = MemoryTier(4, 8, share), []
    for step, number in steps:
        name, tenant = b"%08d" % number, f"t{number % 3}"
        if step == "put" and not tier.is_here(name):
            put(tier, name, tenant)
        elif step == "pin" and name in tier:
            tier.pin(name)
            pinned.append(name)
        elif step == "unpin" and name in pinned:
            tier.unpin(name)
            pinned.remove(name)
        elif step == "forget":
            tier.forget(tenant)
        here = [name for name in (b"%08d" % number for number in range(10)) if tier.is_here(name)]
        assert len(here) == len(tier) <= 4
        assert set(pinned) <= set(here)
        for tenant in range(3):
            assert sum(int(name) % 3 == tenant for name in here) <= share
        for name in here:
            assert bytes(tier.contents(name)) == name
