"""Contexts: within their budget, without repetitions, and every span re-reads to its file."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.retrieval.context import build_context
from kvarn.retrieval.quoting import make_boundary
from kvarn.retrieval.types import Chunk, Hit
from profiles import examples

BOUNDARY = make_boundary(b"secret", "conv")
DOCUMENTS = {
    name: " ".join(f"{name}{i} says so{'.' if i % 7 == 6 else ''}" for i in range(400)) for name in ("a", "b", "c")
}


def hit(name: str, start: int, end: int, score: float = 0.5) -> Hit:
    chunk = Chunk(start, start, end, DOCUMENTS[name][start:end], 0)
    return Hit("vs", f"file-{name}", f"{name}.md", chunk, score)


def count(text: str) -> int:
    return len(text.split())


def shown(found: Any) -> list[tuple[str, int, int]]:
    return [(each.filename, each.start, each.end) for each in found.spans]


def test_neighbours_and_overlaps_become_one_span_in_the_order_of_the_file() -> None:
    found = build_context([hit("a", 100, 300, 0.9), hit("a", 0, 100, 0.8), hit("a", 250, 400, 0.7)], 10_000, count)
    assert shown(found) == [("a.md", 0, 400)]
    assert found.left_out == 0


def test_the_source_of_the_best_hit_comes_first_and_each_source_in_its_order() -> None:
    found = build_context(
        [hit("b", 500, 600, 0.9), hit("a", 0, 50, 0.8), hit("b", 0, 100, 0.7)], 10_000, count, max_source_tokens=5000
    )
    assert shown(found) == [("b.md", 0, 100), ("b.md", 500, 600), ("a.md", 0, 50)]


def test_the_same_text_of_another_file_is_quoted_once() -> None:
    other = Hit("vs", "file-copy", "copy.md", hit("a", 0, 200).chunk, 0.4)
    assert shown(build_context([hit("a", 0, 200), other], 10_000, count)) == [("a.md", 0, 200)]


def test_one_source_leaves_room_for_the_others() -> None:
    found = build_context([hit("a", 0, 4000, 0.9), hit("b", 0, 400, 0.8)], 400, count)
    assert {each.filename for each in found.spans} == {"a.md", "b.md"}
    assert found.left_out == 1  # the end of a


def test_a_passage_that_is_too_long_ends_with_a_sentence() -> None:
    (span,) = build_context([hit("a", 0, 4000)], 200, count).spans
    assert span.text.rstrip().endswith(".")
    assert 50 < count(span.text) <= 200


def test_nothing_found_is_an_empty_context() -> None:
    assert build_context([], 1000, count).quoted(BOUNDARY) == ""


def test_spans_are_quoted_with_their_numbers_and_names() -> None:
    text = build_context([hit("a", 0, 50), hit("b", 0, 50)], 1000, count).quoted(BOUNDARY, first=3)
    assert f"begin 3: a.md>>>\n{DOCUMENTS['a'][:50]}\n" in text
    assert "begin 4: b.md>>>" in text


HITS = st.builds(
    lambda name, start, length, score: hit(name, start, start + length, score),
    st.sampled_from("abc"),
    st.integers(0, 3000),
    st.integers(1, 900),
    st.floats(0, 1),
)


@settings(max_examples=examples(200))
@given(st.lists(HITS, max_size=12), st.integers(1, 600), st.none() | st.integers(1, 300))
def test_any_context_keeps_its_budget_and_quotes_each_character_once(
    hits: list[Hit], budget: int, per_source: int | None
) -> None:
    found = build_context(hits, budget, count, max_source_tokens=per_source)
    assert found.tokens <= budget
    assert sum(count(each.text) for each in found.spans) <= found.tokens
    seen: set[tuple[str, int]] = set()
    for span in found.spans:
        assert DOCUMENTS[span.filename[0]][span.start : span.end] == span.text
        characters = {(span.file_id, place) for place in range(span.start, span.end)}
        assert not seen & characters
        seen |= characters
    for name in "abc":
        of_file = [each for each in found.spans if each.filename == f"{name}.md"]
        assert sum(count(each.text) for each in of_file) <= (per_source or budget)
