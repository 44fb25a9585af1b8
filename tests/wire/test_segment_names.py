"""Names of a prompt's blocks that are made from its segments: equal exactly where the tokens are."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.shapes import BLOCK_SIZE
from kvarn.wire.block_names import NamedPrompt, PrefixScope, block_hashes, root_hash, segment_names
from profiles import examples

ROOT = root_hash(PrefixScope())
recipes = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 7, 16, 30, 64])), max_size=5)


def tokens_of(segments: list[tuple[int, int]]) -> list[int]:
    return [1000 * key + place for key, length in segments for place in range(length)]


@settings(max_examples=examples(300), derandomize=True, deadline=None)
@given(recipes, recipes)
def test_blocks_have_equal_names_exactly_where_their_tokens_and_all_before_them_are_equal(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    full = [len(tokens_of(each)) // BLOCK_SIZE for each in (one, other)]
    named, hashed = segment_names(ROOT, one), block_hashes(tokens_of(one), PrefixScope())[: full[0]]
    others, others_hashed = segment_names(ROOT, other), block_hashes(tokens_of(other), PrefixScope())[: full[1]]
    assert (len(named), len(others)) == (full[0], full[1])
    pairs = zip(named, others, strict=False), zip(hashed, others_hashed, strict=False)
    assert [a == b for a, b in pairs[0]] == [a == b for a, b in pairs[1]]
    assert len({*named}) == len(named)


def test_names_of_other_tenants_and_of_the_answer_are_others() -> None:
    prompt = NamedPrompt.of(ROOT, [(1, 40), (2, 30)], answer=(3, 50))
    assert prompt == [0] * 70
    assert len(prompt.names) == 120 // BLOCK_SIZE
    assert prompt.index_names == b"".join(name[:8] for name in prompt.names[:4])
    assert not {*segment_names(root_hash(PrefixScope("t")), [(1, 40)])} & {*prompt.names}
    following = NamedPrompt.of(ROOT, [(1, 40), (2, 30), (3, 50), (4, 100)], answer=(5, 10))
    assert following.names[:7] == prompt.names
