"""Errors of the database."""

from __future__ import annotations


class StoreError(Exception):
    """The database cannot be used as asked; the message says what to do."""


class StoreAwayError(StoreError):
    """The database does not answer. Whether the request was carried out is unknown."""


class StoreReadOnlyError(StoreAwayError):
    """The database answers and takes no writes: a server demoted to a standby, or a full disk. Whatever had to be
    written has not been done; all else goes on."""


class StoreBusyError(StoreAwayError):
    """The database answers, and others of the same organisation write at this moment: what was asked has not been done,
    and may be asked again."""


class DiskFullError(StoreReadOnlyError):
    """There is no room for what was to be written. Something smaller may still find room, which says nothing."""


class StoreRefusedError(StoreAwayError):
    """The database is away for this server: there is none at that place, or it does not let the server in. Waiting does
    not mend it, its operator does."""


class NotFoundError(StoreError):
    """There is no such object, or it belongs to another owner: the error does not tell which."""


class ConflictError(StoreError):
    """The object is not in a state that allows the change, or one of that name is there already."""


class StorageFullError(StoreError):
    """An organisation that has `stored` so many bytes would store more than `max_bytes`: `size` more, as far as that is
    known."""

    def __init__(self, stored: int, max_bytes: int, size: int | None = None) -> None:
        self.stored = stored
        self.max_bytes = max_bytes
        more = "" if size is None else f", and this would take {size} more"
        super().__init__(
            f"Your organisation stores {stored} of the {max_bytes} bytes it may (the server's "
            f"retention.max_stored_bytes){more}: delete files, responses, completions or conversations that are no "
            "longer needed. Your administrator can have them go sooner (retention_days), or raise the bound."
        )


class UnstorableError(StoreError):
    """The database refuses a row as it is; trying again changes nothing."""
