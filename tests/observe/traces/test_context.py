"""W3C's trace context: what of a client's headers is believed, and what is passed on."""

from __future__ import annotations

import pytest

from kvarn.observe.traces.context import begin, parent_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_clients_span_is_the_parent_and_its_state_is_passed_on() -> None:
    parent = parent_of(
        [(b"traceparent", f"00-{TRACE}-{SPAN}-01".encode()), (b"tracestate", b"a=1"), (b"tracestate", b"b=2")]
    )
    own = begin("record", parent)
    assert (own.trace_id, own.parent_id, own.sampled, own.state) == (TRACE, SPAN, True, "a=1,b=2")
    assert own.span_id != SPAN
    assert own.headers == {"traceparent": f"00-{TRACE}-{own.span_id}-01", "tracestate": "a=1,b=2"}


@pytest.mark.parametrize(
    "value",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
    ],
)
def test_an_invalid_header_begins_a_new_trace(value: str) -> None:
    assert parent_of([(b"traceparent", value.encode())]) is None


def test_two_parents_begin_a_new_trace() -> None:
    assert parent_of([(b"traceparent", f"00-{TRACE}-{SPAN}-01".encode())] * 2) is None


def test_a_later_version_may_have_more_fields() -> None:
    parent = parent_of([(b"traceparent", f"cc-{TRACE}-{SPAN}-00-what-comes".encode())])
    assert parent is not None and not parent.sampled


def test_requests_without_a_parent_have_traces_of_their_own() -> None:
    assert begin("a", None) == begin("a", None)
    assert begin("a", None).trace_id != begin("b", None).trace_id
