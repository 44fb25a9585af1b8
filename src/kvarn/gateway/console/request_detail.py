"""One kept request: its timeline, its spans, and why it took as long as it did."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from kvarn.catalog.turn_steps import steps_of
from kvarn.explain.explain import explain
from kvarn.explain.explanation import Explanation
from kvarn.explain.parts import read
from kvarn.explain.typical import Typical, seconds_by_part, typical_of
from kvarn.gateway.console.request_rows import RequestRow, describe_rows
from kvarn.gateway.console.viewer import Viewer
from kvarn.gateway.state import Gateway
from kvarn.kept.keeper import steps_in_time
from kvarn.kept.packing import Kept, unpack
from kvarn.observe.traces.spans import request_spans
from kvarn.observe.traces.traced import TracedRequest, TracedTurn
from kvarn.store.models import KeptRequest
from kvarn.store.repositories.kept_requests import KeptFilter, details_of_shape, find_kept, session_of
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.step_records import TurnSteps

_COMPARED = 32
"""Requests of its shape that are read for a typical one."""

_log = logging.getLogger("kvarn.gateway")


class EventObject(Struct):
    """An event of the timeline; `at_s` since the request's headers came."""

    name: str
    at_s: float
    numbers: Mapping[str, float]
    turn: int
    """Number of the turn of an engine that told it; 0: the gateway's own."""


class SpanObject(Struct):
    """A span; times since the request's headers came."""

    name: str
    begin_s: float
    end_s: float
    parent: int | None
    """Place in the list; null: the request's own span, which is the first."""
    failed: bool
    attributes: Mapping[str, Any]
    events: list[EventObject]


class RequestDetail(Struct, kw_only=True):
    """A kept request with all that is known of it."""

    request: RequestRow
    currency: str
    """Currency of its cost."""
    name: str
    method: str
    trace_id: str
    model_route: str
    """The name that was asked for, where it stands for several models."""
    metadata: Mapping[str, str]
    warnings: Sequence[str]
    cache: Mapping[str, str]
    """The part that the response cache had in it; empty: none."""
    turns: Sequence[TracedTurn]
    events: list[EventObject]
    spans: list[SpanObject]
    explanation: Explanation
    typical: Typical | None
    """The typical request of its shape; null where none is kept."""
    with_steps: bool
    """Whether the engine's steps are known: without them the explanation names nobody, and there are no tokens."""
    session: list[str]
    """Ids of the requests of its session in their order, its own among them; empty without a session."""


async def find(viewer: Viewer, record_id: str) -> tuple[KeptRequest, Kept]:
    """A request that the viewer may see. Raises `NotFoundError`, and `ApiError` 500 where it cannot be read."""
    async with viewer.store.reading() as session:
        row, packed = await find_kept(session, record_id, scope_of(viewer))
    try:
        return row, await asyncio.to_thread(unpack, packed)
    except ValueError as error:
        message = f"The request was kept by another version of Kvarn: {error}."
        raise ApiError(500, message, type="server_error", code="kept_request_unreadable") from None


async def describe(gateway: Gateway, viewer: Viewer, record_id: str) -> RequestDetail:
    """All about a request that the viewer may see. Raises as `find`."""
    row, kept = await find(viewer, record_id)
    request, steps = kept.request, await steps_of_request(gateway, kept)
    async with viewer.store.reading() as session:
        alike = await details_of_shape(session, row, scope_of(viewer), _COMPARED)
        together = [] if row.session is None else await session_of(session, row.session, scope_of(viewer))
    names = await viewer.names_of({turn.tenant for each in steps.values() for turn in each.turns})
    served = gateway.models.named(row.model)
    replicas = 1 if served is None else max(1, len(served.replicas))
    told = await asyncio.to_thread(_tell, request, steps, names, replicas, alike)
    explanation, typical, spans = told
    (described,) = await describe_rows(viewer, [row])
    return RequestDetail(
        request=described,
        currency=gateway.config.metering.currency,
        name=request.name,
        method=request.method,
        trace_id=request.trace.trace_id,
        model_route=request.model_route,
        metadata=request.metadata,
        warnings=request.warnings,
        cache=request.cache,
        turns=request.turns,
        events=[
            EventObject(event.name, event.at_s - request.events[0].at_s, event.numbers, event.turn)
            for event in request.events
        ],
        spans=spans,
        explanation=explanation,
        typical=typical,
        with_steps=bool(steps),
        session=[each.id for each in together],
    )


async def steps_of_request(gateway: Gateway, kept: Kept) -> Mapping[str, TurnSteps]:
    """The steps that were kept with it, else those that its engines still remember."""
    if kept.steps:
        return kept.steps
    turns = [turn for turn in kept.request.turns if turn.replica]
    told = await steps_in_time(partial(steps_of, gateway.models), turns)
    return {name: steps for of_turn in told.values() for name, steps in of_turn.items()}


def scope_of(viewer: Viewer) -> KeptFilter:
    return KeptFilter(organization_id=viewer.organization_id, project_id=viewer.project_id)


def _tell(
    request: TracedRequest,
    steps: Mapping[str, TurnSteps],
    names: Mapping[str, str],
    replicas: int,
    alike: Sequence[bytes],
) -> tuple[Explanation, Typical | None, list[SpanObject]]:
    """Explanation, typical request and spans. Runs in a thread."""
    typical = typical_of([parts for each in alike if (parts := _parts(each)) is not None])
    explanation = explain(request, steps, typical, lambda tenant: names.get(tenant, ""), replicas=replicas)
    begin_s = request.events[0].at_s
    spans = [
        SpanObject(
            span.name,
            span.begin_s - begin_s,
            span.end_s - begin_s,
            span.parent,
            span.failed,
            span.attributes,
            [EventObject(event.name, event.at_s - begin_s, event.attributes, 0) for event in span.events],
        )
        for span in request_spans(request)
    ]
    return explanation, typical, spans


def _parts(packed: bytes) -> dict[str, float] | None:
    """Seconds by part of a kept request; None where it cannot be read."""
    try:
        return seconds_by_part(read(unpack(packed).request, {}).parts)
    except ValueError as error:
        _log.warning("a kept request is left out of a comparison: %s", error)
        return None
