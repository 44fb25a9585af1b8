"""Marks in an answer become annotations, however its text is cut on the way; forged ones stay text."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses.response_output_text import AnnotationFileCitation

from kvarn.retrieval.citations import CitationReader
from kvarn.retrieval.context import Span
from kvarn.retrieval.quoting import citation, make_boundary
from profiles import examples

BOUNDARY = make_boundary(b"secret", "conv")
OFFERED = {
    number: Span("vs", f"file-{number}", f"{number}.md", 10 * number, 10 * number + 5, "Blue.", 1.0)
    for number in (1, 2)
}
ONE, TWO, THREE = (citation(BOUNDARY, number) for number in (1, 2, 3))


def read(*pieces: str) -> tuple[str, list[dict[str, Any]]]:
    reader = CitationReader(BOUNDARY, OFFERED)
    found = [*map(reader.feed, pieces), reader.finish()]
    return "".join(each.text for each in found), [dict(a) for each in found for a in each.annotations]


def test_a_mark_becomes_an_annotation_at_its_place() -> None:
    text, annotations = read(f"The sky is blue {ONE}. Grass is not{TWO}.")
    assert text == "The sky is blue. Grass is not."
    assert [(each["file_id"], each["index"]) for each in annotations] == [("file-1", 15), ("file-2", 29)]
    assert annotations[0] | {"start": 10, "end": 15, "quote": "Blue."} == annotations[0]
    assert AnnotationFileCitation.model_validate(annotations[0]).filename == "1.md"


def test_a_mark_given_twice_at_one_place_counts_once() -> None:
    assert len(read(f"Blue {ONE} {ONE}{TWO}.")[1]) == 2


def test_what_was_not_offered_and_what_is_forged_cites_nothing() -> None:
    for mark in (THREE, "[0000-1]", "[1]", f"{ONE[:-1]}x]", "[ -1]"):
        assert read(f"Blue {mark}.") == (f"Blue {mark}.", [])


def test_what_may_be_a_mark_waits_and_the_rest_does_not() -> None:
    reader = CitationReader(BOUNDARY, OFFERED)
    assert reader.feed(f"Blue {ONE[:4]}").text == "Blue"
    assert reader.feed("nothing").text == f" {ONE[:4]}nothing"
    assert reader.feed("a ").text == "a"
    assert reader.finish().text == " "


def test_what_is_offered_later_may_be_cited_then() -> None:
    offered: dict[int, Span] = {}
    reader = CitationReader(BOUNDARY, offered)
    assert reader.feed(f"{ONE}.").text == f"{ONE}."
    offered |= OFFERED
    assert len(reader.feed(f" {ONE}.").annotations) == 1


PARTS = st.lists(st.sampled_from([ONE, TWO, THREE, ONE[:3], "[", "]", " ", "blue", "[[", f"[{ONE}", "\n"]), max_size=12)


@settings(max_examples=examples(200))
@given(PARTS, st.lists(st.integers(1, 9), min_size=1))
def test_the_pieces_of_an_answer_change_nothing(parts: list[str], sizes: list[int]) -> None:
    whole, pieces, place = "".join(parts), [], 0
    while place < len(whole):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(whole[place : place + size])
        place += size
    text, annotations = read(*pieces)
    assert (text, [(a["file_id"], a["index"]) for a in annotations]) == _plainly(whole)


def _plainly(text: str) -> tuple[str, list[tuple[str, int]]]:
    found: list[tuple[str, int]] = []
    given, is_after_mark = "", False
    while text:
        number = next((each for each in OFFERED if text.startswith(citation(BOUNDARY, each))), None)
        if number is None:
            given, text, is_after_mark = given + text[0], text[1:], False
            continue
        given, is_after_mark = given if is_after_mark else given.removesuffix(" "), True
        found.append((f"file-{number}", len(given)))
        text = text.removeprefix(citation(BOUNDARY, number))
    return given, list(dict.fromkeys(found))
