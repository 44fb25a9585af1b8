"""The compiled index against the one in Python, and both against sets."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.routing import index
from kvarn.routing.index import BlockIndex, PlainBlockIndex, plain_block_names
from kvarn.wire.block_names import PrefixScope, block_hashes, root_hash

compiled = index._compiled
NEEDS_COMPILED = "Kvarn was installed without its compiled modules"

NAMES = st.one_of(st.integers(0, 40), st.integers(0, 40).map(lambda low: (low << 56) | 7), st.integers(0, 2**64 - 1))
"""Few, so that they meet; all in one part of the table; and any."""
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "remove", "clear"]), st.sampled_from([0, 1, 31, 63]), st.lists(NAMES)
    ),
    max_size=40,
)


def packed(names: list[int]) -> bytes:
    return struct.pack(f"<{len(names)}Q", *names)


def kinds() -> list[Any]:
    skip = pytest.mark.skipif(compiled is None, reason=NEEDS_COMPILED)
    return [PlainBlockIndex, pytest.param(getattr(compiled, "BlockIndex", None), marks=skip, id="compiled")]


@pytest.mark.parametrize("make", kinds())
@given(operations=OPERATIONS, prompts=st.lists(st.lists(NAMES, max_size=12), max_size=5))
@settings(max_examples=150, deadline=None)
def test_an_index_says_what_sets_of_names_say(
    make: Callable[[], BlockIndex], operations: list[tuple[str, int, list[int]]], prompts: list[list[int]]
) -> None:
    made, held = make(), [set[int]() for _ in range(64)]
    for operation, replica, names in operations:
        if operation == "insert":
            made.insert(replica, packed(names))
            held[replica] |= set(names)
        elif operation == "remove":
            made.remove(replica, packed(names))
            held[replica] -= set(names)
        else:
            made.clear(replica)
            held[replica].clear()
    prompts += [names for _, _, names in operations]
    for prompt in prompts:
        expected = []
        for names in held:
            missing = [position for position, name in enumerate(prompt) if name not in names]
            expected.append(missing[0] if missing else len(prompt))
        assert made.match(packed(prompt)) == expected


@pytest.mark.parametrize("make", kinds())
def test_an_index_grows_and_shrinks_and_finds_all(make: Callable[[], BlockIndex]) -> None:
    made = make()
    names = [(number * 0x9E3779B97F4A7C15) % 2**64 for number in range(50_000)]
    for start in range(0, len(names), 1000):
        made.insert(start // 1000 % 3, packed(names[start : start + 1000]))
    assert len(made) == 50_000
    for start in range(0, len(names), 1000):
        assert made.match(packed(names[start : start + 1000]))[start // 1000 % 3] == 1000
    made.clear(0)
    assert made.match(packed(names[:1])) == [0] * 64
    made.insert(0, packed(names[:5]))
    assert made.match(packed(names[:10]))[0] == 5
    made.remove(1, packed(names))
    made.remove(2, packed(names))
    for _ in range(300):  # what was cleared goes with later calls
        made.remove(2, b"")
    assert len(made) == 5


@pytest.mark.parametrize("make", kinds())
def test_what_is_no_name_and_no_replica_is_refused(make: Callable[[], BlockIndex]) -> None:
    made = make()
    for call in (made.insert, made.remove):
        with pytest.raises(ValueError, match="8 bytes"):
            call(0, b"1234567")
        with pytest.raises(ValueError, match="0 to 63"):
            call(64, b"")
    with pytest.raises(ValueError, match="0 to 63"):
        made.clear(-1)


@given(st.lists(st.integers(0, 2**31), max_size=100), st.text(max_size=3), st.text(max_size=3))
def test_names_are_the_first_bytes_of_the_engines(tokens: list[int], tenant: str, namespace: str) -> None:
    scope = PrefixScope(tenant, "salt", "adapter")
    full = tokens[: len(tokens) // 16 * 16]
    expected = b"".join(name[:8] for name in block_hashes(full, scope, namespace))
    root = root_hash(scope, namespace)
    assert plain_block_names(root, tokens) == expected
    if compiled is not None:
        assert compiled.block_names(root, tokens, 16) == expected


@pytest.mark.skipif(compiled is None, reason=NEEDS_COMPILED)
@given(st.integers(1, 30), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=70), st.binary(min_size=16, max_size=16))
def test_the_compiled_hash_is_blake2b_for_every_length(block_size: int, tokens: list[int], root: bytes) -> None:
    assert compiled.block_names(root, tokens, block_size) == plain_block_names(root, tokens, block_size)
