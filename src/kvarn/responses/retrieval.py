"""Responses that exist already: read, streamed again, cancelled, deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from kvarn.responses.background_runs import BackgroundRun, ResponsesContext
from kvarn.responses.replay import replay
from kvarn.responses.writer import end_event
from kvarn.store.models import StoredResponse
from kvarn.store.owner import Owner
from kvarn.store.repositories.conversations import background_responses
from kvarn.store.repositories.conversations.conversations import Lock, unlock_conversation
from kvarn.store.repositories.queries import delete_owned, read_owned
from kvarn.wire.openai.errors import invalid_request, unavailable
from kvarn.wire.openai.responses.answer import ENDED, Response, StreamEvent

_POLL_S = 0.5
"""Period of reads of a response that another gateway makes."""

_CANCEL_TIMEOUT_S = 5.0
"""Seconds that a client which cancels a response waits for its end to be written."""


async def retrieve_response(serving: ResponsesContext, owner: Owner, response_id: str) -> Response:
    row = await read_owned(serving.store, owner, StoredResponse, response_id)
    return msgspec.convert(row.body, Response)


async def follow_response(
    serving: ResponsesContext, owner: Owner, response_id: str, after: int
) -> AsyncGenerator[list[StreamEvent], None]:
    """The events of a response with numbers above `after`, up to its end. One that is made here is followed live, the
    end of one that another gateway makes is waited for, and the stream of one that has ended is made again. Raises as
    `retrieve_response` does.
    """
    run = serving.responses.find(owner, response_id)
    if run is not None:
        async with aclosing(follow_run(serving, run, after)) as batches:
            async for batch in batches:
                yield batch
        return
    row = await _wait_for_end(serving, owner, response_id)
    events = replay(msgspec.convert(row.body, Response), len(row.input_items), row.cuts)
    yield [event for event in events if event.sequence_number > after]


async def follow_run(
    serving: ResponsesContext, run: BackgroundRun, after: int = -1
) -> AsyncGenerator[list[StreamEvent], None]:
    """The events of a response that is made here with numbers above `after`, up to its end. Where this gateway did not
    end it, its end is waited for, and sent with the next number."""
    async with aclosing(run.log.follow(after)) as batches:
        async for batch in batches:
            yield batch
    if not run.log.has_end and run.stop_reason != "shutdown":
        row = await _wait_for_end(serving, run.owner, run.id)
        yield [end_event(msgspec.convert(row.body, Response), max(len(run.log), after + 1))]


async def cancel_response(serving: ResponsesContext, owner: Owner, response_id: str) -> Response:
    """Cancel a background response; one that has ended stays as it is. Raises `ApiError` 400 where it does not run in
    the background; 503 where it has been stopped, and its end is still to be written."""
    row = await read_owned(serving.store, owner, StoredResponse, response_id)
    if not row.background:
        message = f"The response {response_id!r} does not run in the background: only those can be cancelled."
        raise invalid_request(message, "response_id", "not_cancellable")
    run = serving.responses.find(owner, response_id)
    if run is not None and not await run.stop("cancelled", _CANCEL_TIMEOUT_S):
        message = "The response has been stopped. How it ended is still to be written, which goes on. Ask again."
        raise unavailable(message, "end_not_written")
    row = await background_responses.cancel_response(serving.store, owner, response_id)
    return msgspec.convert(row.body, Response)


async def delete_response(serving: ResponsesContext, owner: Owner, response_id: str) -> None:
    """Delete a response; one that runs is stopped. Raises as `retrieve_response` does."""
    row = await read_owned(serving.store, owner, StoredResponse, response_id)
    await delete_owned(serving.store, owner, StoredResponse, response_id)
    run = serving.responses.find(owner, response_id)
    if run is not None:
        await run.stop("lost")
    await serving.tools.runner.forget(response_id, response_id.removeprefix("resp_"), approved=True)
    if row.conversation_id is not None:
        await unlock_conversation(serving.store, Lock(row.conversation_id, response_id))


async def _wait_for_end(serving: ResponsesContext, owner: Owner, response_id: str) -> StoredResponse:
    while True:
        row = await read_owned(serving.store, owner, StoredResponse, response_id)
        if row.status in ENDED:
            return row
        await asyncio.sleep(_POLL_S)
