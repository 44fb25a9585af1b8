"""The APIs that the server speaks, and which of them a request is answered in."""

from __future__ import annotations

from collections.abc import Iterable

from kvarn.wire.anthropic.dialect import ANTHROPIC
from kvarn.wire.dialect import Dialect
from kvarn.wire.ollama.dialect import OLLAMA
from kvarn.wire.openai.dialect import OPENAI

DIALECTS = (OPENAI, ANTHROPIC, OLLAMA)


def dialect_of(path: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> Dialect:
    """The dialect of a request, known before anything can fail: that of the path, else (`/v1/models`, or a path that
    does not exist) that of the client whose header it brings, else OpenAI's."""
    owner = next((dialect for dialect in DIALECTS if dialect.owns(path)), None)
    if owner is not None:
        return owner
    names = {name for name, _ in headers}
    return next((dialect for dialect in DIALECTS if dialect.header in names), OPENAI)
