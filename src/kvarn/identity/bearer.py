"""The key that a request presents."""

from __future__ import annotations

from collections.abc import Iterable

from kvarn.store.keys import is_key
from kvarn.wire.openai.errors import ApiError


def presented(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """What a request presents as its key, of whatever form: `Authorization: Bearer …` (OpenAI's way) or
    `x-api-key: …` (Anthropic's). Where it sends both, the one that has the form of a key."""
    found = [text for name, value in headers if (text := _credential(name, value))]
    return next((text for text in found if is_key(text)), found[0] if found else None)


def _credential(name: bytes, value: bytes) -> str | None:
    if name == b"x-api-key":
        return value.decode("latin-1").strip()
    if name == b"authorization":
        scheme, _, credential = value.decode("latin-1").partition(" ")
        return credential.strip() if scheme.lower() == "bearer" else None
    return None


def not_authenticated(key: str | None) -> ApiError:
    """The 401 for a request without a key, or with one that is not valid: why it is not is nobody's business."""
    if key is None:
        message = "You did not provide an API key: send it as 'Authorization: Bearer kv-…'."
    else:
        message = "Incorrect API key provided: it is unknown, has expired or was revoked."
    return ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": 'Bearer realm="kvarn"'})
