"""Names of stored objects, in the style of OpenAI's."""

from __future__ import annotations

import re
import secrets

from kvarn.clock import SYSTEM_CLOCK

DEFAULT_ORGANIZATION = "org-default"  # the organisation that a new database has
DEFAULT_PROJECT = "proj_default"
"""Its project: what requests without a key, on an open server, belong to."""


def new_id(prefix: str) -> str:
    """A name nobody can guess, such as `file-019d…`: the time in milliseconds, so that what was made in one second can
    still be told apart by age, then 80 random bits."""
    return f"{prefix}{int(SYSTEM_CLOCK.time() * 1000):012x}{secrets.token_hex(10)}"


MAX_TURNS = 4
"""Turns of one request that are looked for: it has several where a model could not begin."""


def event_ids(request: str) -> list[str]:
    """Ids that the usage events of a request's turns have; `request`: the id that the gateway made for it."""
    return [f"use_{request}", *(f"use_{request}.{turn}" for turn in range(1, MAX_TURNS))]


_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_id(text: str) -> bool:
    """Whether a client's text can be the name of anything: a database need not be asked for others."""
    return _ID.fullmatch(text) is not None
