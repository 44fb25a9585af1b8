"""Makes grammars in a process of `kvarn.sandbox`: requests and replies are JSON."""

from __future__ import annotations

import json

import msgspec

from kvarn.grammar.answers import check_answer
from kvarn.grammar.asked import Answered, Asked
from kvarn.grammar.build import build


def answer(payload: bytes) -> bytes:
    """The reply to an `Asked` or an `Answered`."""
    request = msgspec.convert(json.loads(payload), Asked | Answered)
    return msgspec.json.encode(build(request) if isinstance(request, Asked) else check_answer(request))
