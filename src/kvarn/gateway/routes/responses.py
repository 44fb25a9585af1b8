"""`/v1/responses`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from typing import Annotated

from pydantic import Field, model_validator
from starlette.responses import Response

from kvarn.gateway.answer import event_stream, json_response, json_when_done
from kvarn.gateway.dependencies import GatewayDep, OwnerDep, RecordDep
from kvarn.gateway.openapi import EVENTS, json_router
from kvarn.gateway.query import CHECKED, Flag, QueryModel, only_false, whole_list
from kvarn.gateway.routes.conversations import Includes, ItemListQuery
from kvarn.responses import retrieval
from kvarn.responses.background import start_background
from kvarn.responses.compaction import compact
from kvarn.responses.events import EventEncoder
from kvarn.responses.operation import count_input_tokens, start_response
from kvarn.responses.shown import shown_items, shown_response
from kvarn.store.models import StoredResponse
from kvarn.store.repositories.pages import cut_page
from kvarn.store.repositories.queries import read_owned
from kvarn.wire.openai.common import disagreement
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.responses import answer
from kvarn.wire.openai.responses.items import StoredItem
from kvarn.wire.openai.responses.request import CompactRequest, ResponseRequest, TokenCountRequest

router = json_router("/v1/responses", "responses")


class ResponseQuery(QueryModel):
    include: Includes
    stream: Flag = Field(False, description="Answer with the response's events, from the first on, up to its end.")
    starting_after: int | None = Field(
        None, ge=0, le=999_999_999, description="Only events above this number; needs `stream`."
    )
    include_obfuscation: Annotated[Flag, only_false("events are sent as they are")] = Field(
        False, description="Noise in the events. `true` is not supported.", json_schema_extra={"enum": [False]}
    )

    @model_validator(mode="after")
    def _fields_agree(self) -> ResponseQuery:
        if self.starting_after is not None and not self.stream:
            raise disagreement("'starting_after' needs 'stream' to be true.", "starting_after")
        return self


@router.post("", summary="Make a response", openapi_extra=EVENTS)
async def create_response(
    gateway: GatewayDep, record: RecordDep, body: ResponseRequest
) -> Annotated[Response, answer.Response]:
    """Answer input items, going on from earlier turns where the request names one: as one object, as a stream of
    events, or in the background."""
    if body.background:
        queued = await start_background(gateway, record, body)
        if body.stream:
            return _stream(retrieval.follow_run(gateway, queued), body.include or ())
        return json_response(queued.row.body)
    run = await start_response(gateway, record, body)
    if body.stream:
        return event_stream(run.stream(), end=b"", encode_error=run.error_event)
    return json_when_done(run.collect(), run.chat.held)


@router.post("/input_tokens", summary="Count a response's input tokens")
async def count_tokens(gateway: GatewayDep, record: RecordDep, body: TokenCountRequest) -> answer.InputTokens:
    return await count_input_tokens(gateway, record, body)


@router.post("/compact", summary="Shorten a conversation")
async def compact_response(
    gateway: GatewayDep, record: RecordDep, body: CompactRequest
) -> Annotated[Response, answer.CompactedResponse]:
    """The user's messages and a summary of the rest, as items that a request can go on from in place of it all."""
    return json_when_done(compact(gateway, record, body))


@router.get("/{response_id}", summary="Retrieve a response", openapi_extra=EVENTS, dependencies=CHECKED)
async def get_response(
    gateway: GatewayDep, owner: OwnerDep, response_id: str, query: ResponseQuery
) -> Annotated[Response, answer.Response]:
    """A stored response as it stands, or (`stream=true`) its events above number `starting_after`, up to its end."""
    if query.stream:
        after = -1 if query.starting_after is None else query.starting_after
        return _stream(retrieval.follow_response(gateway, owner, response_id, after), query.include)
    return json_response(shown_response(await retrieval.retrieve_response(gateway, owner, response_id), query.include))


@router.delete("/{response_id}", summary="Delete a response", dependencies=CHECKED)
async def delete_response(gateway: GatewayDep, owner: OwnerDep, response_id: str) -> DeletedObject:
    """Delete a stored response; one that runs in the background is stopped."""
    await retrieval.delete_response(gateway, owner, response_id)
    return DeletedObject(id=response_id, object="response")


@router.post("/{response_id}/cancel", summary="Cancel a background response", dependencies=CHECKED)
async def cancel_response(gateway: GatewayDep, owner: OwnerDep, response_id: str) -> answer.Response:
    """Stop a background response; what has been written is kept. One that has ended stays as it is."""
    return shown_response(await retrieval.cancel_response(gateway, owner, response_id), ())


@router.get("/{response_id}/input_items", summary="List a response's input items", dependencies=CHECKED)
async def list_input_items(
    gateway: GatewayDep, owner: OwnerDep, response_id: str, query: ItemListQuery
) -> ListObject[StoredItem]:
    row = await read_owned(gateway.store, owner, StoredResponse, response_id)
    page = cut_page(row.input_items, query.cursor, lambda item: str(item["id"]))
    return whole_list(shown_items(page.items, query.include), has_more=page.has_more)


def _stream(batches: AsyncGenerator[list[answer.StreamEvent], None], include: Collection[str]) -> Response:
    encoder = EventEncoder(include)
    return event_stream(encoder.encoded(batches), end=b"", encode_error=encoder.error_event)
