"""How the database does, as its last uses told."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum

from kvarn.store.errors import StoreAwayError, StoreBusyError, StoreReadOnlyError

_log = logging.getLogger("kvarn.store")


class StoreState(StrEnum):
    """What may be expected of the database."""

    UP = "up"
    READ_ONLY = "read_only"
    """It answers, and takes no writes."""
    AWAY = "away"
    """It does not answer."""


class StoreHealth:
    """What is known without asking. That writes go again only one that did says (`note_written`): a transaction may
    have ended without writing a thing."""

    def __init__(self) -> None:
        self._is_away = False
        self._refuses_writes = False

    @property
    def state(self) -> StoreState:
        """As of the last use."""
        if self._is_away:
            return StoreState.AWAY
        return StoreState.READ_ONLY if self._refuses_writes else StoreState.UP

    @contextmanager
    def watching(self) -> Generator[None, None, None]:
        """A use of the database."""
        try:
            yield
        except StoreReadOnlyError as error:
            self._is_away = False
            if not self._refuses_writes:
                self._refuses_writes = True
                _log.warning("%s; it is read, and what cannot wait is refused", error)
            raise
        except StoreBusyError:
            self._is_away = False
            raise
        except StoreAwayError:
            self._is_away = True
            raise
        self._is_away = False

    def note_written(self) -> None:
        """The database has taken a row."""
        self._is_away = False
        if self._refuses_writes:
            self._refuses_writes = False
            _log.info("the database takes writes again")
