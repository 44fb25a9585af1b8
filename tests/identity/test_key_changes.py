"""When a cached key is stale: whose keys have changed, by answers in any order, and how far they are relied on."""

from __future__ import annotations

from itertools import permutations

import pytest

from kvarn.identity import key_changes
from kvarn.identity.key_changes import AWAY_S, KeyChanges, Mark, Question
from kvarn.store.engine import Store
from kvarn.store.repositories.tenants.revisions import EVERYBODY, Changes
from watched_store import WatchedStore

REFRESH_S = 10.0


def make() -> KeyChanges:
    return KeyChanges(None, REFRESH_S, lambda: 0.0)  # type: ignore[arg-type]  # nothing is asked


def hear(known: KeyChanges, changes: Changes, since: Mark | None = None) -> Mark:
    """The database answers a question that was put at a mark; by default, at the newest."""
    return known.note(Question(0.0, since or known.question().mark), changes)


def answer(number: int, complete_from: int = 0, *, is_anew: bool = False, **holders: int) -> Changes:
    return Changes(number, holders, complete_from, is_anew)


def test_an_organisations_change_leaves_the_others_as_they_were() -> None:
    known = make()
    mark = hear(known, answer(5))
    hear(known, answer(6, 5, a=6))
    assert known.has_changed("a", mark) and not known.has_changed("b", mark)
    assert not known.has_changed(None, mark)
    assert not known.has_changed("a", known.question().mark)


def test_a_change_that_concerns_everybody_is_everybodys() -> None:
    known = make()
    mark = hear(known, answer(5))
    hear(known, Changes(6, {EVERYBODY: 6}, 5, is_anew=False))
    assert all(known.has_changed(holder, mark) for holder in ("a", "b", None))
    assert not known.has_changed(None, known.question().mark)


def test_answers_may_come_in_any_order() -> None:
    answers = [
        (0, answer(1, a=1)),
        (1, answer(2, 1, a=1, b=2)),
        (1, answer(4, 1, a=1, b=2, c=4)),
        (2, answer(5, 2, b=5, c=4)),
    ]
    for order in permutations(answers):
        known = make()
        for since, each in order:
            hear(known, each, Mark(0, since))
        assert known.question().mark == Mark(0, 5)
        changed = {
            holder: [number for number in range(6) if known.has_changed(holder, Mark(0, number))] for holder in "abcd"
        }
        assert changed == {"a": [0], "b": [0, 1, 2, 3, 4], "c": [0, 1, 2, 3], "d": []}


def test_of_those_an_answer_had_no_room_for_all_are_taken_to_have_changed() -> None:
    known = make()
    early = hear(known, answer(5))
    late = Mark(0, 900)
    hear(known, answer(2000, 900, a=1999), early)
    assert known.has_changed("b", early) and known.has_changed(None, early)
    assert not known.has_changed("b", late) and known.has_changed("a", late)


def test_after_a_database_was_taken_back_nothing_read_before_holds() -> None:
    known = make()
    old = hear(known, answer(50, a=50))
    asked = known.question().mark
    new = hear(known, answer(40, a=40, is_anew=True), asked)
    assert all(known.has_changed(holder, old) for holder in ("a", "b", None))
    assert not any(known.has_changed(holder, new) for holder in ("a", "b", None))
    late = hear(known, answer(40, a=40, is_anew=True), asked)
    assert known.has_changed("b", late), "asked before that was known: read again"
    hear(known, answer(50, 40, b=50))
    assert known.has_changed("b", new) and not known.has_changed("a", new)


def test_memory_is_bounded_and_the_forgotten_count_as_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_changes, "_MAX_HOLDERS", 10)
    known = make()
    for number in range(1, 101):
        hear(known, Changes(number, {f"org-{number}": number}, number - 1, is_anew=False))
    assert len(known._newest) <= 10
    for number in range(1, 101):
        assert known.has_changed(f"org-{number}", Mark(0, number - 1))
    assert known.has_changed("org-3", Mark(0, 50)) and not known.has_changed("org-3", Mark(0, 99))


class Setup:
    """The changes of a store that counts what is asked of it."""

    def __init__(self, store: Store) -> None:
        self.store = WatchedStore(store)
        self.now = 1000.0
        self.changes = KeyChanges(self.store, REFRESH_S, lambda: self.now)  # type: ignore[arg-type]

    async def asked(self, later_s: float) -> tuple[bool, int]:
        """Whether the number is current that much later, and how many questions had been asked before it was said."""
        self.now += later_s
        before = self.store.reads
        return await self.changes.is_current(), self.store.reads - before


@pytest.fixture
def setup(store: Store) -> Setup:
    return Setup(store)


async def test_a_young_number_is_taken_an_ageing_one_asked_for_beside_and_an_old_one_before(setup: Setup) -> None:
    assert await setup.asked(0) == (True, 1), "it was never asked for"
    assert await setup.asked(REFRESH_S / 2) == (True, 0)
    assert await setup.asked(0.1) == (True, 0)
    await setup.changes.settle()
    assert setup.store.reads == 2
    assert await setup.asked(REFRESH_S / 2) == (True, 0), "the answer made it young"
    assert await setup.asked(REFRESH_S) == (True, 1)


async def test_what_was_asked_for_before_a_change_made_here_is_stale(setup: Setup) -> None:
    """The clock stands still: no two things need happen at different times."""
    assert await setup.asked(0) == (True, 1)
    question = setup.changes.question()
    setup.changes.renew(["org-a"])
    early = setup.changes.note(question, Changes(0, {}, 0, is_anew=False))
    assert setup.changes.has_changed("org-a", early), "the answer may be older than the change"
    assert not setup.changes.has_changed("org-b", early)
    late = setup.changes.note(setup.changes.question(), Changes(0, {}, 0, is_anew=False))
    assert not setup.changes.has_changed("org-a", late)


async def test_a_change_made_here_that_concerns_all_is_everybodys(setup: Setup) -> None:
    await setup.asked(0)
    mark = setup.changes.question().mark
    setup.changes.renew([EVERYBODY])
    assert setup.changes.has_changed("org-a", mark) and setup.changes.has_changed(None, mark)


async def test_an_answer_to_a_question_of_an_older_history_is_stale(setup: Setup) -> None:
    changes = setup.changes
    changes.note(changes.question(), Changes(50, {}, 0, is_anew=False))
    early = changes.question()
    changes.renew(["org-a"])  # a change made here in a database that has been taken back: it gets the number 41
    late = changes.question()
    mark = changes.note(early, Changes(40, {}, 0, is_anew=True))
    late_mark = changes.note(late, Changes(41, {"org-a": 41}, 0, is_anew=True))
    assert changes.has_changed("org-a", mark), "what was read before the change"
    assert changes.has_changed("org-a", late_mark), "read again"


async def test_while_the_database_is_away_it_is_asked_now_and_then_and_nobody_waits(setup: Setup) -> None:
    await setup.asked(0)
    mark = setup.changes.question().mark
    setup.store.away = True
    assert await setup.asked(2 * REFRESH_S) == (False, 1)
    assert setup.changes.is_away and not setup.changes.has_changed("org-a", mark)
    assert await setup.asked(AWAY_S / 2) == (False, 0)
    await setup.changes.settle()
    assert setup.store.reads == 2, "too early to ask again"
    assert await setup.asked(AWAY_S) == (False, 0), "asked beside the request"
    await setup.changes.settle()
    assert setup.store.reads == 3 and setup.changes.away_s == 1.5 * AWAY_S
    setup.store.away = False
    await setup.asked(2 * AWAY_S)
    await setup.changes.settle()
    assert not setup.changes.is_away and await setup.asked(0) == (True, 0)
