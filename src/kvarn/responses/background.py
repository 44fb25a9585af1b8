"""Responses made in the background: queued, run, taken over, retrieved, streamed again, cancelled."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from kvarn.identity.scopes import check_endpoint
from kvarn.responses.context import Turn, open_turn, open_turn_again
from kvarn.responses.ending import Ending
from kvarn.responses.operation import run_turn
from kvarn.responses.replay import as_queued, replay
from kvarn.responses.request import chat_request, new_response
from kvarn.responses.responses_context import ResponsesContext
from kvarn.responses.runs import BackgroundRun
from kvarn.responses.sink import LeasedShelf
from kvarn.responses.writer import ResponseWriter, end_event
from kvarn.serving.errors import to_api_error
from kvarn.serving.record import RequestRecord
from kvarn.serving.run_to_completion import to_the_end
from kvarn.store.errors import StoreAwayError
from kvarn.store.ids import new_id
from kvarn.store.models import StoredResponse
from kvarn.store.owner import Owner, Principal
from kvarn.store.repositories.conversations import background_responses as leased
from kvarn.store.repositories.conversations import responses as stored
from kvarn.store.repositories.conversations.conversations import Lock, unlock_conversation
from kvarn.store.repositories.tenants.bearers import find_bearer
from kvarn.wire.openai.errors import RETRY_AFTER_S, ApiError, invalid_request, unavailable
from kvarn.wire.openai.responses.answer import ENDED, Response, StreamEvent
from kvarn.wire.openai.responses.request import ResponseRequest

_log = logging.getLogger("kvarn.gateway")

MAX_ATTEMPTS = 2
"""Times a response is begun where its gateways die under it."""

_LOOK_EVERY_S = 0.5
"""How often a response that another gateway makes is looked at."""

_CANCEL_WAIT_S = 5.0
"""How long a client that cancels a response waits for its end to be written."""

_BUSY = (409, 429, 503)
"""Refusals that pass: the conversation is locked, a limit is reached, the model is not ready."""


async def start_background(serving: ResponsesContext, record: RequestRecord, asked: ResponseRequest) -> BackgroundRun:
    """Queue a response and begin to run it.

    Raises:
        ApiError: It cannot be answered as asked, or too many run here already.
        StorageFullError: The organisation would store more than it may.
        StoreAwayError: The database does not answer.
    """
    serving.find_model(record, asked.model)
    with serving.responses.place_for(record.principal.owner):
        run = await _queue(serving, record, asked)
        serving.responses.launch(run)
    return run


async def _queue(serving: ResponsesContext, record: RequestRecord, asked: ResponseRequest) -> BackgroundRun:
    principal, runs = record.principal, serving.responses
    response_id = new_id("resp_")
    turn = await open_turn(serving, record, asked, response_id)
    response = new_response(asked, response_id, int(serving.store.now()))
    row = StoredResponse(
        id=response_id,
        input_items=turn.items,
        body=msgspec.to_builtins(response),
        request={
            "asked": asked.model_dump(by_alias=True, exclude_unset=True, exclude={"input"}),
            "key_id": principal.key_id,
            "seed": secrets.randbits(63),
        },
        attempts=1,
        conversation_id=asked.conversation_id,
    )
    try:
        await serving.run(record, lambda: chat_request(asked, asked.model, turn.context))
        await leased.queue_response(
            serving.store,
            principal.owner,
            row.body,
            row.input_items,
            row.request,
            row.conversation_id,
            runs.gateway_id,
            runs.config.lease_s,
            serving.room.most,
        )
    except BaseException:
        if turn.lock is not None:
            runs.locking.discard(response_id)
            await to_the_end(unlock_conversation(serving.store, turn.lock))
        raise
    return BackgroundRun(response_id, principal.owner, row, record.body_bytes, principal)


async def run_background(serving: ResponsesContext, run: BackgroundRun) -> None:
    """Run a queued response to its end, whatever that is."""
    making = _Making(serving, run)
    try:
        await making.run()
    except asyncio.CancelledError:
        await to_the_end(making.stopped())
    finally:
        making.tell_end()


class _Making:
    """One background response while it is made."""

    def __init__(self, serving: ResponsesContext, run: BackgroundRun) -> None:
        row = run.row
        lock = None if row.conversation_id is None else Lock(row.conversation_id, run.id)
        response = msgspec.convert(row.body, Response)
        self._serving = serving
        self._run = run
        self._turn = Turn([], row.input_items, lock)
        self._writer = ResponseWriter(as_queued(response, row.request["asked"]), len(row.input_items))
        shelf = LeasedShelf(serving.store, serving.responses, run)
        self._ending = Ending(self._writer, row.input_items, lock, shelf)
        # The input lies in items of its own, with their references resolved.
        self._asked = ResponseRequest.model_validate({**row.request["asked"], "input": ""})
        run.log.append(*self._writer.queue())

    async def run(self) -> None:
        """Make it, trying again while it is refused for reasons that pass."""
        if self._run.row.attempts > MAX_ATTEMPTS:
            message = f"The server stopped {MAX_ATTEMPTS} times while the response was being made. Ask again."
            await self._ending.fail(ApiError(500, message, type="server_error", code="interrupted"))
            return
        tries = 0
        last_try = time.monotonic() + self._serving.config.responses.wait_s
        while True:
            record = RequestRecord(self._run.id, endpoint="/v1/responses", body_bytes=self._run.body_bytes)
            try:
                await self._make(record)
                return
            except Exception as error:
                told = to_api_error(error)
                if self._writer.begun or not _passes(told) or time.monotonic() >= last_try:
                    await self._ending.fail(error)
                    return
                tries += 1
                pause = min(30.0, float(told.headers.get("retry-after", RETRY_AFTER_S * 2 ** min(tries, 5))))
            finally:
                if self._run.why == "lost":  # the lock is that of whoever has taken it over
                    self._serving.responses.locking.discard(self._run.id)
                await record.close()
            await asyncio.sleep(pause)

    async def _make(self, record: RequestRecord) -> None:
        serving, run = self._serving, self._run
        record.principal = run.principal or await _principal(serving, run)
        run.principal = None  # a later try asks again: the key may be revoked by then
        self._turn = await open_turn_again(serving, record, self._asked, self._turn)
        seed = run.row.request["seed"]
        made = await run_turn(serving, record, self._asked, self._turn, self._writer, self._ending, seed)
        noted = False
        async with aclosing(made.written()) as batches:
            async for batch in batches:
                run.log.append(*batch)
                if not noted:
                    noted = True
                    await self._note_begun()

    async def stopped(self) -> None:
        """It was stopped from outside. Where that was its client, what has been written is kept."""
        if self._run.why == "cancelled":
            await self._ending.cancel()
        else:
            await self._ending.leave()
        if self._run.why == "shutdown":
            await self._give_back()

    def tell_end(self) -> None:
        """Tell its followers how it ended, where they have not heard of it."""
        self._run.log.append(*self._ending.take_last_events())

    async def _note_begun(self) -> None:
        body = msgspec.to_builtins(self._writer.response)
        try:
            await leased.note_begun(self._serving.store, self._serving.responses.gateway_id, body)
        except StoreAwayError as error:  # its end will be written all the same
            _log.debug("background response %s: %s", self._run.id, error)

    async def _give_back(self) -> None:
        try:
            await leased.release_response(self._serving.store, self._serving.responses.gateway_id, self._run.id)
        except StoreAwayError as error:  # its lease runs out by itself
            _log.debug("background response %s: %s", self._run.id, error)


def _passes(refusal: ApiError) -> bool:
    """Whether it is worth waiting for another answer; waiting earns no money."""
    return refusal.status in _BUSY and refusal.code != "insufficient_quota"


async def retrieve_response(serving: ResponsesContext, owner: Owner, response_id: str) -> Response:
    """A response as it stands.

    Raises:
        NotFoundError: The owner has none of that id.
    """
    row = await stored.find_response(serving.store, owner, response_id)
    return msgspec.convert(row.body, Response)


async def follow_response(
    serving: ResponsesContext, owner: Owner, response_id: str, after: int
) -> AsyncGenerator[list[StreamEvent], None]:
    """The events of a response with numbers above `after`, once more and up to its end. Raises as `retrieve_response`
    does.

    One that runs here is followed live. One that another gateway makes is waited for; of one that has ended, the
    stream is made again, just as it was.
    """
    run = serving.responses.find(owner, response_id)
    if run is not None:
        async with aclosing(follow_run(serving, run, after)) as batches:
            async for batch in batches:
                yield batch
        return
    row = await _ended(serving, owner, response_id)
    asked = row.request["asked"] if row.background else None
    again = replay(msgspec.convert(row.body, Response), len(row.input_items), row.cuts, asked)
    yield [event for event in again if event.sequence_number > after]


async def follow_run(
    serving: ResponsesContext, run: BackgroundRun, after: int = -1
) -> AsyncGenerator[list[StreamEvent], None]:
    """The events of a response that runs here with numbers above `after`, up to its end. Where this gateway did not end
    it, its end is waited for, and told with the next number.

    Raises:
        NotFoundError: It was deleted meanwhile.
    """
    async with aclosing(run.log.follow(after)) as batches:
        async for batch in batches:
            yield batch
    if not run.log.told_end and run.why != "shutdown":
        row = await _ended(serving, run.owner, run.id)
        yield [end_event(msgspec.convert(row.body, Response), max(len(run.log), after + 1))]


async def _ended(serving: ResponsesContext, owner: Owner, response_id: str) -> StoredResponse:
    """The response, once it has ended. Raises as `retrieve_response` does."""
    while True:
        row = await stored.find_response(serving.store, owner, response_id)
        if row.status in ENDED:
            return row
        await asyncio.sleep(_LOOK_EVERY_S)


async def cancel_response(serving: ResponsesContext, owner: Owner, response_id: str) -> Response:
    """Cancel a background response; one that has ended stays as it is.

    Raises:
        ApiError: 400, it does not run in the background; 503, it has been stopped, and its end is still to be written.
        NotFoundError: The owner has none of that id.
    """
    row = await stored.find_response(serving.store, owner, response_id)
    if not row.background:
        message = f"The response {response_id!r} does not run in the background: only those can be cancelled."
        raise invalid_request(message, "response_id", "not_cancellable")
    run = serving.responses.find(owner, response_id)
    if run is not None and not await run.stop("cancelled", _CANCEL_WAIT_S):
        message = "The response has been stopped. How it ended is still to be written, which goes on. Ask again."
        raise unavailable(message, "end_not_written")
    row = await leased.cancel_response(serving.store, owner, response_id)
    return msgspec.convert(row.body, Response)


async def delete_response(serving: ResponsesContext, owner: Owner, response_id: str) -> None:
    """Delete a response; one that runs is stopped. Raises as `retrieve_response` does."""
    row = await stored.find_response(serving.store, owner, response_id)
    await stored.delete_response(serving.store, owner, response_id)
    run = serving.responses.find(owner, response_id)
    if run is not None:
        await run.stop("lost")
    if row.conversation_id is not None:
        await unlock_conversation(serving.store, Lock(row.conversation_id, response_id))


async def _principal(serving: ResponsesContext, run: BackgroundRun) -> Principal:
    """Whoever asked, as of now: a key may have been revoked since."""
    principal = await find_bearer(serving.store, run.owner, run.row.request["key_id"])
    if principal is None:
        message = "Whoever asked for the response may no longer do so."
        raise ApiError(401, message, code="invalid_api_key")
    check_endpoint(principal, "/v1/responses")
    return principal
