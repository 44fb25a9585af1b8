"""Responses and their events as a client sees them: without what only the model is shown, and with the fields of tools'
items that the client asks for."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import UnsetType
from msgspec.structs import replace

from kvarn.wire.openai.responses.answer import Response, StreamEvent
from kvarn.wire.openai.responses.hosted import HOSTED_PREFIXES, visible
from kvarn.wire.openai.responses.items import StoredItem


def shown_items(items: Sequence[StoredItem], include: Collection[str]) -> list[StoredItem]:
    return [visible(item, include) for item in items]


def shown_response(response: Response, include: Collection[str]) -> Response:
    if all(item["type"] not in HOSTED_PREFIXES for item in response.output):
        return response
    return replace(response, output=shown_items(response.output, include))


def shown_event(event: StreamEvent, include: Collection[str]) -> StreamEvent:
    if not isinstance(event.item, UnsetType) and event.item["type"] in HOSTED_PREFIXES:
        return replace(event, item=visible(event.item, include))
    if not isinstance(event.response, UnsetType):
        response = shown_response(event.response, include)
        return event if response is event.response else replace(event, response=response)
    return event
