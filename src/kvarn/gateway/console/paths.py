"""Paths of the console: which of them need no key, and what is not counted as a request to a model."""

from __future__ import annotations

CONSOLE = "/console"
API = f"{CONSOLE}/api"
SESSION = f"{API}/session"
OIDC_START = f"{API}/oidc/start"
OIDC_CALLBACK = f"{API}/oidc/callback"

_SIGN_IN = frozenset({SESSION, OIDC_START, OIDC_CALLBACK})
"""Find out themselves who asks."""


def is_console(path: str) -> bool:
    return path == CONSOLE or path.startswith(CONSOLE + "/")


def is_public(path: str) -> bool:
    """Whether a path of the console needs no key: the built files, which hold no secret, and signing in."""
    return is_console(path) and (path in _SIGN_IN or not (path == API or path.startswith(API + "/")))
