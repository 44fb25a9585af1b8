"""API keys: how they are made, and what is kept of them.

A key is `kv-`, twelve characters that find its row (`lookup`), and 43 characters that nobody can guess: of 62 kinds, a
little more than 256 random bits. Only its SHA-256 is stored. A slow hash protects passwords, which people choose; it
would add nothing to 256 random bits, and cost every request.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from dataclasses import dataclass

_PREFIX = "kv-"
_ALPHABET = string.ascii_letters + string.digits
_LOOKUP_CHARS = 12
_SECRET_CHARS = 43
_SESSION_PREFIX = "kvs-"
_KEY = re.compile(rf"{_PREFIX}[A-Za-z0-9]{{{_LOOKUP_CHARS + _SECRET_CHARS}}}")
_SESSION_TOKEN = re.compile(rf"{_SESSION_PREFIX}[A-Za-z0-9]{{{_LOOKUP_CHARS + _SECRET_CHARS}}}")


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key just made: the only moment at which its value is known."""

    value: str
    lookup: str
    digest: str
    redacted: str


def new_key() -> NewKey:
    lookup = _draw(_LOOKUP_CHARS)
    value = f"{_PREFIX}{lookup}{_draw(_SECRET_CHARS)}"
    return NewKey(value, lookup, digest_of(value), f"{_PREFIX}{lookup[:6]}...{value[-4:]}")


def new_session_token() -> NewKey:
    """A token of a session of the console: made as a key is, but no key. Its `lookup` begins unlike any key's."""
    lookup = _SESSION_PREFIX + _draw(_LOOKUP_CHARS)
    value = lookup + _draw(_SECRET_CHARS)
    return NewKey(value, lookup, digest_of(value), f"{lookup}...")


def is_session_token(text: str) -> bool:
    return _SESSION_TOKEN.fullmatch(text) is not None


def session_lookup_of(token: str) -> str:
    return token[: len(_SESSION_PREFIX) + _LOOKUP_CHARS]


def is_session_lookup(lookup: str) -> bool:
    return lookup.startswith(_SESSION_PREFIX)


def is_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None


def lookup_of(key: str) -> str:
    return key[len(_PREFIX) : len(_PREFIX) + _LOOKUP_CHARS]


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _draw(count: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(count))
