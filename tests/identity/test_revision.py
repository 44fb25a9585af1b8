"""How far what is known of changes to the principals may be relied on: young, ageing, old, away."""

from __future__ import annotations

import pytest

from kvarn.identity.revision import AWAY_S, RevisionWatch
from kvarn.store.engine import Store
from kvarn.store.repositories.tenants.revisions import EVERYBODY, Changes
from watched_store import WatchedStore

REFRESH_S = 10.0


class Setup:
    """A watch over a store that counts what is asked of it."""

    def __init__(self, store: Store) -> None:
        self.store = WatchedStore(store)
        self.now = 1000.0
        self.watch = RevisionWatch(self.store, REFRESH_S, lambda: self.now)  # type: ignore[arg-type]

    async def asked(self, later_s: float) -> tuple[bool, int]:
        """Whether the number is current that much later, and how many questions had been asked before it was said."""
        self.now += later_s
        before = self.store.reads
        return await self.watch.is_current(), self.store.reads - before


@pytest.fixture
def setup(store: Store) -> Setup:
    return Setup(store)


async def test_a_young_number_is_taken_an_ageing_one_asked_for_beside_and_an_old_one_before(setup: Setup) -> None:
    assert await setup.asked(0) == (True, 1), "it was never asked for"
    assert await setup.asked(REFRESH_S / 2) == (True, 0)
    assert await setup.asked(0.1) == (True, 0)
    await setup.watch.settle()
    assert setup.store.reads == 2
    assert await setup.asked(REFRESH_S / 2) == (True, 0), "the answer made it young"
    assert await setup.asked(REFRESH_S) == (True, 1)


async def test_what_was_asked_for_before_a_change_made_here_does_not_count(setup: Setup) -> None:
    """The clock stands still: no two things need happen at different times."""
    assert await setup.asked(0) == (True, 1)
    question = setup.watch.question()
    setup.watch.expire(["org-a"])
    assert not setup.watch.counts(question)
    setup.watch.note(question, Changes(0, {}, 0, is_anew=False))
    assert setup.watch.may_have_changed("org-a", question.mark), "the answer may be older than the change"
    assert not setup.watch.may_have_changed("org-b", question.mark)
    assert await setup.asked(0) == (True, 1), "asked again"
    assert not setup.watch.may_have_changed("org-a", question.mark), "it did not hold after all"
    assert await setup.asked(0) == (True, 0)


async def test_a_change_made_here_that_concerns_all_is_everybodys(setup: Setup) -> None:
    await setup.asked(0)
    mark = setup.watch.question().mark
    setup.watch.expire([EVERYBODY])
    assert setup.watch.may_have_changed("org-a", mark) and setup.watch.may_have_changed(None, mark)


async def test_an_answer_to_a_question_of_an_older_history_makes_nothing_current(setup: Setup) -> None:
    watch = setup.watch
    watch.note(watch.question(), Changes(50, {}, 0, is_anew=False))
    early = watch.question()
    watch.expire(["org-a"])  # an act done here in a database that has been taken back: it gets the number 41
    late = watch.question()
    mark = watch.note(early, Changes(40, {}, 0, is_anew=True))
    watch.note(late, Changes(41, {"org-a": 41}, 0, is_anew=True))
    assert watch.may_have_changed("org-a", mark), "what was read before the act"
    assert await setup.asked(0) == (True, 1), "asked again"


async def test_while_the_database_is_away_it_is_asked_now_and_then_and_nobody_waits(setup: Setup) -> None:
    await setup.asked(0)
    mark = setup.watch.question().mark
    setup.store.away = True
    assert await setup.asked(2 * REFRESH_S) == (False, 1)
    assert setup.watch.is_away and not setup.watch.may_have_changed("org-a", mark)
    assert await setup.asked(AWAY_S / 2) == (False, 0)
    await setup.watch.settle()
    assert setup.store.reads == 2, "too early to ask again"
    assert await setup.asked(AWAY_S) == (False, 0), "asked beside the request"
    await setup.watch.settle()
    assert setup.store.reads == 3 and setup.watch.away_s == 1.5 * AWAY_S
    setup.store.away = False
    await setup.asked(2 * AWAY_S)
    await setup.watch.settle()
    assert not setup.watch.is_away and await setup.asked(0) == (True, 0)
