"""Makes grammars in a process of `kvarn.sandbox`: requests and replies are JSON."""

from __future__ import annotations

import json
import logging

import msgspec

from kvarn.grammar.answers import check_answer
from kvarn.grammar.asked import Answered, Asked, Refusal
from kvarn.grammar.build import build

_log = logging.getLogger(__name__)


def answer(payload: bytes) -> bytes:
    request = msgspec.convert(json.loads(payload), Asked | Answered)
    if isinstance(request, Answered):
        return msgspec.json.encode(check_answer(request))
    try:
        return msgspec.json.encode(build(request))
    except MemoryError:
        raise
    except Exception as error:  # a form that nobody thought of
        _log.exception("a grammar cannot be made")
        param = "tools" if request.wanted is None else request.wanted.param
        return msgspec.json.encode(Refusal(f"{param!r} cannot be compiled ({type(error).__name__}).", param))
