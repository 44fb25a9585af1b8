"""A sign-in under way: what a browser keeps, sealed, while its user is at the provider."""

from __future__ import annotations

import hashlib
import re
import secrets
from base64 import urlsafe_b64encode

import msgspec

LIFETIME_S = 600
_RELATIVE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._~!$&'()*+,;=:@%/?-]{0,999}")


class Attempt(msgspec.Struct, frozen=True):
    redirect_uri: str
    next: str
    """Page of the console to go on to, relative to its root."""
    state: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(32))
    nonce: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(32))
    verifier: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(48))


class AttemptSeal:
    """Seals attempts under a key that all gateways have: it is made of the secret that they share with the provider."""

    def __init__(self, client_secret: str) -> None:
        from cryptography.fernet import Fernet  # an extra

        key = hashlib.sha256(b"kvarn console sign-in\0" + client_secret.encode()).digest()
        self._fernet = Fernet(urlsafe_b64encode(key))

    def seal(self, attempt: Attempt, now: float) -> str:
        return self._fernet.encrypt_at_time(msgspec.json.encode(attempt), int(now)).decode()

    def open(self, sealed: str, now: float) -> Attempt | None:
        """The attempt; None: it is none of ours, or too old."""
        from cryptography.fernet import InvalidToken

        try:
            plain = self._fernet.decrypt_at_time(sealed.encode(), LIFETIME_S, int(now))
            return msgspec.json.decode(plain, type=Attempt)
        except (InvalidToken, ValueError):  # msgspec's errors are ValueErrors
            return None


def relative_page(text: str) -> str:
    """A page of the console to go on to; empty, the first, for whatever might lead elsewhere."""
    return text if _RELATIVE.fullmatch(text) and ":" not in text.partition("/")[0].partition("?")[0] else ""
