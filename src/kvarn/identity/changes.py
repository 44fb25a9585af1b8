"""Whose principals have changed since they were read, as far as this gateway has heard."""

from __future__ import annotations

from typing import NamedTuple

from kvarn.store.repositories.tenants.revisions import EVERYBODY, Changes

_HOLDERS_MOST = 20_000
"""Organisations whose changes are told apart; of those that changed longest ago all are taken to have changed."""


class Mark(NamedTuple):
    """How far the database was when something was read. Numbers are compared within one history only."""

    history: int
    """How often the database had been found taken back (restored from a backup, lost acts in a failover)."""
    number: int
    """Of the newest act that could be seen."""


class KnownChanges:
    """The newest change heard of for each organisation. Answers may come in any order, and twice."""

    def __init__(self) -> None:
        self.mark = Mark(0, 0)
        """The newest heard of."""
        self._newest: dict[str, int] = {}
        self._all_changed_at = 0
        """What was read before this act has changed, whosever it is."""

    def hear(self, asked_since: Mark, changes: Changes) -> tuple[Mark, bool]:
        """Take in what has changed since a mark.

        Returns:
            How far the database was at least, for what is read after the answer; and whether the answer was taken in:
            one to a question of an older history says nothing of this one.
        """
        if asked_since.history != self.mark.history:
            return Mark(asked_since.history, changes.number), False  # another has found out first
        if changes.is_anew:
            self.mark = Mark(self.mark.history + 1, changes.number)
            self._newest, self._all_changed_at = {}, 0
            return self.mark, True
        if changes.complete_from > asked_since.number:
            self._all_changed_at = max(self._all_changed_at, changes.complete_from)
        for holder, number in changes.holders.items():
            self._newest[holder] = max(number, self._newest.get(holder, 0))
        self._all_changed_at = max(self._all_changed_at, self._newest.pop(EVERYBODY, 0))
        self._forget_some()
        self.mark = max(self.mark, Mark(self.mark.history, changes.number))
        return Mark(self.mark.history, changes.number), True

    def has_changed(self, organization_id: str | None, since: Mark) -> bool:
        """Whether an organisation's principals may be others than at that mark; None: what is of no organisation."""
        if since.history != self.mark.history:
            return True
        own = 0 if organization_id is None else self._newest.get(organization_id, 0)
        return since.number < max(own, self._all_changed_at)

    def _forget_some(self) -> None:
        if len(self._newest) > _HOLDERS_MOST:
            oldest_first = sorted(self._newest.items(), key=lambda pair: pair[1])
            forgotten = oldest_first[: len(oldest_first) // 2]
            self._all_changed_at = max(self._all_changed_at, forgotten[-1][1])
            self._newest = dict(oldest_first[len(forgotten) :])
