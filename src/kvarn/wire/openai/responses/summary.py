"""Summaries of conversations as clients keep them: as a text without meaning to them."""

from __future__ import annotations

import base64

from kvarn.wire.openai.common import validation_error

_BEGIN = "kvarn-summary-1."


def encoded_summary(text: str) -> str:
    """A summary for a client to keep. It is no secret: it tells the client's own conversation."""
    return _BEGIN + base64.urlsafe_b64encode(text.encode()).decode()


def summary_of(content: str) -> str:
    """The summary that a client sends back. Raises `PydanticCustomError`: it is none of ours."""
    try:
        if content.startswith(_BEGIN):
            return base64.b64decode(content.removeprefix(_BEGIN), altchars=b"-_", validate=True).decode()
    except ValueError:
        pass
    raise validation_error("not_ours", "this server has not made it; only its own summaries can be read")
