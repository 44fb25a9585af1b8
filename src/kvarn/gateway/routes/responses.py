"""`/v1/responses`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import get_args

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.answer import event_stream, json_response, json_when_done
from kvarn.gateway.openapi import EVENTS, shapes
from kvarn.gateway.pagination import ListQuery, list_answer
from kvarn.gateway.parameters import Flag, Number, Texts
from kvarn.gateway.query import Query, check_query
from kvarn.gateway.record import record_of
from kvarn.gateway.state import gateway_of
from kvarn.responses import retrieval
from kvarn.responses.background import start_background
from kvarn.responses.ending import ResponseEnding
from kvarn.responses.operation import count_input_tokens, start_response
from kvarn.responses.stream import ResponseStream
from kvarn.store.owner import Owner
from kvarn.store.repositories.conversations.responses import find_response
from kvarn.store.repositories.pages import cut_page
from kvarn.wire.openai.errors import invalid_request
from kvarn.wire.openai.lists import ListObject
from kvarn.wire.openai.responses import answer as response_answer
from kvarn.wire.openai.responses.answer import DeletedResponse, InputTokens, StreamEvent
from kvarn.wire.openai.responses.items import StoredItem
from kvarn.wire.openai.responses.request import Include, ResponseRequest, TokenCountRequest

router = APIRouter(prefix="/v1/responses", tags=["responses"])

INCLUDE = Texts(
    "include",
    "What to answer besides. Nothing of what it may name is ever left out here.",
    choices=get_args(Include),
)
_STREAM = Flag("stream", "Answer with the response's events, from the first on, up to its end.", default=False)
_STARTING_AFTER = Number("starting_after", "Only events above this number; needs `stream`.", default=None)
_OBFUSCATION = Flag("include_obfuscation", "Noise in the events.", default=False, refused="events are sent as they are")
_READ = Query(INCLUDE, _STREAM, _STARTING_AFTER, _OBFUSCATION)
_LIST = ListQuery(INCLUDE)


@router.post("", summary="Make a response", openapi_extra=EVENTS)
@shapes(response_answer.Response, ResponseRequest)
async def create_response(request: Request) -> Response:
    """Answer input items, going on from earlier turns where asked to: as one object, as a stream of events, or in the
    background."""
    gateway, record = gateway_of(request), record_of(request.scope)
    asked = await gateway.read(request, ResponseRequest)
    if asked.background:
        queued = await start_background(gateway, record, asked)
        return _stream(retrieval.follow_run(gateway, queued)) if asked.stream else json_response(queued.row.body)
    run = await start_response(gateway, record, asked)
    return _stream(run.stream(), run.ending) if asked.stream else json_when_done(run.collect(), run.chat.held)


@router.post("/input_tokens", summary="Count a response's input tokens")
@shapes(InputTokens, TokenCountRequest)
async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of a response would have."""
    gateway = gateway_of(request)
    asked = await gateway.read(request, TokenCountRequest)
    return json_response(await count_input_tokens(gateway, record_of(request.scope), asked))


@router.get("/{response_id}", summary="Retrieve a response", openapi_extra=_READ.described | EVENTS)
@shapes(response_answer.Response)
async def get_response(request: Request, response_id: str) -> Response:
    """A stored response as it stands, or (`stream=true`) its events above number `starting_after`, up to its end."""
    _READ.check(request)
    gateway, after = gateway_of(request), _STARTING_AFTER.read(request)
    if _STREAM.read(request):
        follow = retrieval.follow_response(gateway, _owner(request), response_id, -1 if after is None else after)
        return _stream(follow)
    if after is not None:
        raise invalid_request("'starting_after' needs 'stream' to be true.", "starting_after")
    return json_response(await retrieval.retrieve_response(gateway, _owner(request), response_id))


@router.delete("/{response_id}", summary="Delete a response")
@shapes(DeletedResponse)
async def delete_response(request: Request, response_id: str) -> Response:
    """Delete a stored response; one that runs in the background is stopped."""
    check_query(request)
    await retrieval.delete_response(gateway_of(request), _owner(request), response_id)
    return json_response(DeletedResponse(id=response_id))


@router.post("/{response_id}/cancel", summary="Cancel a background response")
@shapes(response_answer.Response)
async def cancel_response(request: Request, response_id: str) -> Response:
    """Stop a background response; what has been written is kept. One that has ended stays as it is."""
    check_query(request)
    return json_response(await retrieval.cancel_response(gateway_of(request), _owner(request), response_id))


@router.get("/{response_id}/input_items", summary="List a response's input items", openapi_extra=_LIST.described)
@shapes(ListObject[StoredItem])
async def list_input_items(request: Request, response_id: str) -> Response:
    """The items that the request for a response brought."""
    cursor = _LIST.read(request)
    row = await find_response(gateway_of(request).store, _owner(request), response_id)
    return json_response(
        list_answer(cut_page(row.input_items, cursor, lambda item: str(item["id"])), lambda item: item)
    )


def _owner(request: Request) -> Owner:
    return record_of(request.scope).principal.owner


def _stream(batches: AsyncGenerator[list[StreamEvent], None], ending: ResponseEnding | None = None) -> Response:
    stream = ResponseStream(batches, ending)
    return event_stream(stream.encoded(), end=b"", tell=stream.error_event)
