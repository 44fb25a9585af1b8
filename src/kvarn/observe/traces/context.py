"""Trace context of W3C: the headers `traceparent` and `tracestate`.

Source: https://www.w3.org/TR/trace-context-2/
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
_MAX_STATE_BYTES = 512
_ZEROS = "0"


class TraceContext(NamedTuple):
    """The place of a request in a trace."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits: the parent of what is done for the request."""
    parent_id: str = ""
    """The client's span; empty: the trace begins here."""
    sampled: bool = True
    state: str = ""
    """The client's `tracestate`, passed on unchanged."""

    @property
    def traceparent(self) -> str:
        """The header by which another server goes on with the trace."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"

    @property
    def headers(self) -> dict[str, str]:
        """Headers of requests to other servers."""
        return {"traceparent": self.traceparent, **({"tracestate": self.state} if self.state else {})}

    @property
    def exemplar(self) -> dict[str, str] | None:
        """Labels of an exemplar that leads to it; None: it is not sampled."""
        return {"trace_id": self.trace_id} if self.sampled else None


def parent_of(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """The client's span. None: the headers name none, or not validly, in which case a new trace begins."""
    parents, states = [], []
    for name, value in headers:
        if name == b"traceparent":
            parents.append(value.strip())
        elif name == b"tracestate":
            states.append(value.strip())
    if len(parents) != 1 or (found := _TRACEPARENT.fullmatch(parents[0])) is None:
        return None
    version, trace_id, span_id, flags = (part.decode() for part in found.groups()[:4])
    if version == "ff" or (version == "00" and found[5]) or not trace_id.strip(_ZEROS) or not span_id.strip(_ZEROS):
        return None
    state = b",".join(states)
    shown = state.decode("ascii", "ignore") if len(state) <= _MAX_STATE_BYTES and state.isascii() else ""
    return TraceContext(trace_id, span_id, sampled=bool(int(flags, 16) & _SAMPLED), state=shown)


def begin(record_id: str, parent: TraceContext | None) -> TraceContext:
    """The context of a request's own span. Its ids follow from the request's unique id, so they need not be kept."""
    digest = blake2b(record_id.encode(), digest_size=24).hexdigest()
    if parent is None:
        return TraceContext(digest[:32], digest[32:])
    return TraceContext(parent.trace_id, digest[32:], parent.span_id, parent.sampled, parent.state)
