"""Chunks: where documents are divided, and that nothing of them is lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.retrieval.chunking import chunk
from kvarn.retrieval.types import Block, Document
from profiles import examples


def words(text: str) -> int:
    return len(text.split())


def document(*blocks: tuple[str, str] | tuple[str, str, int]) -> Document:
    """A document of blocks: kind, text, level."""
    text, found = "", []
    for kind, content, *level in blocks:
        found.append(Block(len(text), len(text) + len(content), kind, *level))
        text += content + "\n\n"
    return Document(text, tuple(found), "test 1")


def sentences(count: int, name: str = "s") -> str:
    return " ".join(f"{name}{number} is one of them." for number in range(count))


def test_short_sections_share_a_chunk_and_long_ones_begin_one():
    made = document(
        ("heading", "# Guide", 1),
        ("paragraph", sentences(2)),
        ("heading", "## Setup", 2),
        ("paragraph", sentences(8, "a")),
        ("heading", "## Use", 2),
        ("paragraph", sentences(3, "b")),
    )
    found = chunk(made, words, 100, 0)
    assert [each.text.split("\n")[0] for each in found] == ["# Guide", "## Use"]
    assert [each.section for each in found] == ["", "Guide"]
    assert "## Setup" in found[0].text


def test_a_block_that_fits_is_not_divided():
    made = document(("paragraph", sentences(12)), ("paragraph", sentences(12, "b")))
    found = chunk(made, words, 100, 0)
    assert [each.text for each in found] == [sentences(12), sentences(12, "b")]


def test_a_heading_is_never_left_at_the_end_of_a_chunk():
    made = document(("paragraph", sentences(3)), ("heading", "Long part", 1), ("paragraph", sentences(19, "b")))
    found = chunk(made, words, 100, 50)
    assert not any(each.text.endswith("Long part") for each in found)
    assert found[1].text.startswith("Long part")


def test_chunks_of_a_long_section_overlap_by_whole_sentences():
    found = chunk(document(("paragraph", sentences(60))), words, 100, 40)
    assert all(each.text.startswith("s") and each.text.endswith("them.") for each in found)
    assert all(each.tokens <= 100 for each in found)
    shared = [words(found[0].text[after.start - found[0].start :]) for after in found[1:2]]
    assert shared == [40]


def test_rows_of_a_long_table_know_its_first_row():
    rows = ["name price", *(f"thing{number} {number}" for number in range(100))]
    made = document(("heading", "Prices", 1), ("table", "\n".join(rows)))
    found = chunk(made, words, 100, 0)
    assert found[0].section == "" and {each.section for each in found[1:]} == {"Prices > name price"}
    assert all(line in rows or line in ("Prices", "") for each in found for line in each.text.splitlines())


def test_what_has_no_sentences_and_no_spaces_is_divided_too():
    found = chunk(document(("paragraph", "x" * 5000)), len, 100, 50)
    assert max(each.tokens for each in found) <= 100
    assert "".join(each.text for each in chunk(document(("paragraph", "x" * 5000)), len, 100, 0)) == "x" * 5000


def test_text_outside_of_blocks_is_not_lost():
    text = "before\n\n# Title\n\nafter it"
    made = Document(text, (Block(8, 15, "heading", 1),), "test 1")
    found = chunk(made, words, 100, 0)
    assert [each.text for each in found] == [text]


def test_each_piece_is_counted_a_bounded_number_of_times():
    counted = 0

    def count(text: str) -> int:
        nonlocal counted
        counted += len(text)
        return len(text.split())

    made = document(("paragraph", sentences(2000)), ("paragraph", "word " * 20_000), ("code", "x" * 50_000))
    chunk(made, count, 100, 50)
    assert counted <= 6 * len(made.text)


KINDS = st.sampled_from(["heading", "paragraph", "list_item", "table", "code"])
TEXTS = st.text("ab.! \n#é漢。\u2028", max_size=120)


@pytest.mark.parametrize("count", [words, len])
@settings(max_examples=examples(100))
@given(
    blocks=st.lists(st.tuples(KINDS, TEXTS, st.integers(0, 3)), max_size=12),
    max_tokens=st.integers(4, 60),
    overlap=st.integers(0, 40),
)
def test_chunks_are_spans_that_cover_the_document_in_order(count, blocks, max_tokens, overlap):
    made = document(*blocks)
    found = chunk(made, count, max_tokens, overlap)
    assert chunk(made, count, max_tokens, overlap) == found
    assert [each.ordinal for each in found] == list(range(len(found)))
    covered = set()
    for each in found:
        assert each.text == made.text[each.start : each.end] and each.text.strip()
        assert count(each.text) <= each.tokens <= max_tokens
        covered |= set(range(each.start, each.end))
    for before, after in pairwise(found):
        assert before.start < after.start and before.end < after.end
        assert count(made.text[after.start : before.end]) <= max(0, min(overlap, max_tokens // 2))
    assert all(index in covered or char.isspace() for index, char in enumerate(made.text))
