"""Makes grammars in a process of `kvarn.sandbox`: a request is JSON of an `Asked`, a reply that of what comes of it."""

from __future__ import annotations

import json

import msgspec

from kvarn.grammar.asked import Asked
from kvarn.grammar.build import build


def answer(payload: bytes) -> bytes:
    """The reply to a request."""
    return msgspec.json.encode(build(msgspec.convert(json.loads(payload), Asked)))
