"""What a gateway makes of the answers to whose keys have changed, in whatever order they come."""

from __future__ import annotations

from itertools import permutations

import pytest

from kvarn.identity import revision as revision_module
from kvarn.identity.revision import KnownChanges, Mark
from kvarn.store.repositories.tenants.revisions import EVERYBODY, Changes


def told(number: int, complete_from: int = 0, *, is_anew: bool = False, **holders: int) -> Changes:
    return Changes(number, holders, complete_from, is_anew)


def test_an_organisations_change_leaves_the_others_as_they_were() -> None:
    known = KnownChanges()
    mark, _ = known.hear(known.mark, told(5))
    known.hear(known.mark, told(6, 5, a=6))
    assert known.has_changed("a", mark) and not known.has_changed("b", mark)
    assert not known.has_changed(None, mark)
    assert not known.has_changed("a", known.mark)


def test_a_change_that_concerns_everybody_is_everybodys() -> None:
    known = KnownChanges()
    mark, _ = known.hear(known.mark, told(5))
    known.hear(known.mark, Changes(6, {EVERYBODY: 6}, 5, is_anew=False))
    assert all(known.has_changed(holder, mark) for holder in ("a", "b", None))
    assert not known.has_changed(None, known.mark)


def test_answers_may_come_in_any_order() -> None:
    answers = [(0, told(1, a=1)), (1, told(2, 1, a=1, b=2)), (1, told(4, 1, a=1, b=2, c=4)), (2, told(5, 2, b=5, c=4))]
    for order in permutations(answers):
        known = KnownChanges()
        for since, answer in order:
            known.hear(Mark(0, since), answer)
        assert known.mark == Mark(0, 5)
        changed = {
            holder: [number for number in range(6) if known.has_changed(holder, Mark(0, number))] for holder in "abcd"
        }
        assert changed == {"a": [0], "b": [0, 1, 2, 3, 4], "c": [0, 1, 2, 3], "d": []}


def test_of_those_an_answer_had_no_room_for_all_are_taken_to_have_changed() -> None:
    known = KnownChanges()
    early, _ = known.hear(known.mark, told(5))
    late = Mark(0, 900)
    known.hear(early, told(2000, 900, a=1999))
    assert known.has_changed("b", early) and known.has_changed(None, early)
    assert not known.has_changed("b", late) and known.has_changed("a", late)


def test_after_a_database_was_taken_back_nothing_read_before_holds() -> None:
    known = KnownChanges()
    old, _ = known.hear(known.mark, told(50, a=50))
    asked = known.mark
    new, was_taken = known.hear(asked, told(40, a=40, is_anew=True))
    assert all(known.has_changed(holder, old) for holder in ("a", "b", None))
    assert not any(known.has_changed(holder, new) for holder in ("a", "b", None))
    late, late_was_taken = known.hear(asked, told(40, a=40, is_anew=True))
    assert known.has_changed("b", late), "asked before that was known: read again"
    assert was_taken and not late_was_taken
    known.hear(known.mark, told(50, 40, b=50))
    assert known.has_changed("b", new) and not known.has_changed("a", new)


def test_memory_is_bounded_and_the_forgotten_count_as_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revision_module, "_MAX_HOLDERS", 10)
    known = KnownChanges()
    for number in range(1, 101):
        known.hear(known.mark, Changes(number, {f"org-{number}": number}, number - 1, is_anew=False))
    assert len(known._newest) <= 10
    for number in range(1, 101):
        assert known.has_changed(f"org-{number}", Mark(0, number - 1))
    assert known.has_changed("org-3", Mark(0, 50)) and not known.has_changed("org-3", Mark(0, 99))
