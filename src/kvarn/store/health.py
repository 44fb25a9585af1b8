"""State of the database, by its last uses."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import StrEnum

from kvarn.clock import SYSTEM_CLOCK
from kvarn.store.errors import DiskFullError, StoreAwayError, StoreBusyError, StoreReadOnlyError

_FULL_S = 60.0
"""Seconds without a refusal after which a full disk counts as having room again: the row that asks whether it has is
small, and fits where nothing else does."""

_log = logging.getLogger("kvarn.store")


class StoreState(StrEnum):
    UP = "up"
    READ_ONLY = "read_only"
    """It answers, and takes no writes."""
    AWAY = "away"


class StoreHealth:
    """State of the database without asking it. Only a write that succeeded shows that writes succeed again
    (`note_written`): a transaction may have ended without writing anything."""

    def __init__(self, clock: Callable[[], float] = SYSTEM_CLOCK.now) -> None:
        self._clock = clock
        self._full_at = -math.inf
        self._is_away = False
        self._refuses_writes = False

    @property
    def state(self) -> StoreState:
        if self._is_away:
            return StoreState.AWAY
        return StoreState.READ_ONLY if self._refuses_writes else StoreState.UP

    @contextmanager
    def watching(self) -> Generator[None, None, None]:
        try:
            yield
        except StoreReadOnlyError as error:
            self._is_away = False
            if isinstance(error, DiskFullError):
                self._full_at = self._clock()
            if not self._refuses_writes:
                self._refuses_writes = True
                _log.warning("%s; reads go on, writes are refused", error)
            raise
        except StoreBusyError:
            self._is_away = False
            raise
        except StoreAwayError:
            self._is_away = True
            raise
        self._is_away = False

    def note_written(self) -> None:
        """The database has taken a small row."""
        self._is_away = False
        if self._refuses_writes and self._clock() - self._full_at >= _FULL_S:
            self._refuses_writes = False
            _log.info("the database takes writes again")
