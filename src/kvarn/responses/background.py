"""Making responses in the background: queued, begun, tried again while the model is busy, stopped."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import aclosing
from typing import Any

import msgspec

from kvarn.answers.errors import to_api_error
from kvarn.answers.observer import tell_ended
from kvarn.answers.record import RequestRecord
from kvarn.clock import SYSTEM_CLOCK
from kvarn.identity.scopes import check_endpoint
from kvarn.jobs.run_to_completion import run_to_completion
from kvarn.observe.traces.traced import CLIENT_LEFT
from kvarn.responses.background_runs import BackgroundRun, ResponsesContext
from kvarn.responses.ending import ResponseEnding, State
from kvarn.responses.hosted_run import served_tools
from kvarn.responses.operation import run_response
from kvarn.responses.replay import unwritten
from kvarn.responses.request import chat_request, new_response
from kvarn.responses.turns import ResponseInput, open_input, reopen_input
from kvarn.responses.writer import ResponseWriter
from kvarn.store.errors import StoreAwayError
from kvarn.store.ids import new_id
from kvarn.store.models import StoredResponse
from kvarn.store.owner import Principal
from kvarn.store.repositories.conversations import background_responses as stored
from kvarn.store.repositories.conversations.conversations import Lock
from kvarn.store.repositories.tenants.principals import find_bearer
from kvarn.wire.openai.cache import CacheOptions
from kvarn.wire.openai.errors import RETRY_AFTER_S, ApiError
from kvarn.wire.openai.hosted import HostedTool
from kvarn.wire.openai.responses.answer import Response
from kvarn.wire.openai.responses.request import ResponseRequest

_log = logging.getLogger("kvarn.responses")

MAX_ATTEMPTS = 2
"""Times a response is begun where its gateways die under it."""

_BUSY = (409, 429, 503)
"""Refusals that pass: the conversation is locked, a limit is reached, the model is not ready."""


async def start_background(serving: ResponsesContext, record: RequestRecord, request: ResponseRequest) -> BackgroundRun:
    """Queue a response and begin to run it."""
    serving.catalog.find(record, request.model)
    with serving.responses.reserve_for(record.principal.owner):
        run = await _queue(serving, record, request)
        serving.responses.launch(run)
    return run


async def _queue(serving: ResponsesContext, record: RequestRecord, request: ResponseRequest) -> BackgroundRun:
    principal, responses = record.principal, serving.responses
    request = served_tools(serving, record, request)
    response_id = new_id("resp_")
    response_input = await open_input(serving, record, request, response_id)
    response = new_response(request, response_id, int(serving.store.now()))
    row = StoredResponse(
        id=response_id,
        input_items=response_input.items,
        body=msgspec.to_builtins(response),
        request={
            "asked": _asked(request),
            "key_id": principal.key_id,
            "seed": secrets.randbits(63),
            "cache": record.cache.model_dump(),
        },
        attempts=1,
        conversation_id=request.conversation_id,
    )
    try:
        # What its tools offer, and so its choice, is known once they are opened.
        checked = request.model_copy(update={"tool_choice": None}) if request.hosted_tools else request
        await serving.run(record, lambda: chat_request(checked, request.model, response_input.context))
        await stored.queue_response(
            serving.store,
            principal.owner,
            row.body,
            row.input_items,
            row.request,
            row.conversation_id,
            responses.gateway_id,
            responses.config.lease_s,
        )
    except BaseException:
        await responses.unlock(response_input.lock)
        raise
    return BackgroundRun(
        response_id, principal.organization_id, principal.owner, row, record.body_bytes, principal, request
    )


def _asked(request: ResponseRequest) -> dict[str, Any]:
    """The request as it is kept, without its input. Secrets of its tools are not kept: where another gateway goes on
    with it, their servers are asked without."""
    asked = request.model_dump(by_alias=True, exclude_unset=True, exclude={"input"})
    if request.hosted_tools:
        asked["tools"] = [
            tool.without_secrets if isinstance(tool, HostedTool) else tool.model_dump(by_alias=True, exclude_unset=True)
            for tool in request.tools or ()
        ]
    return asked


async def run_background(serving: ResponsesContext, run: BackgroundRun) -> None:
    attempt = _Attempt(serving, run)
    try:
        await attempt.run()
    except asyncio.CancelledError:
        await run_to_completion(attempt.stopped())
    finally:
        attempt.log_end()
    await attempt.forget_calls()


class _Attempt:
    def __init__(self, serving: ResponsesContext, run: BackgroundRun) -> None:
        row = run.row
        lock = None if row.conversation_id is None else Lock(row.conversation_id, run.id)
        response = msgspec.convert(row.body, Response)
        self._serving = serving
        self._run = run
        self._input = ResponseInput([], row.input_items, lock)
        self._writer = ResponseWriter(unwritten(response), len(row.input_items))
        self._ending = ResponseEnding(serving.responses, run.owner, self._writer, row.input_items, lock, run)
        # The input is kept as items, with references resolved.
        self._request = run.request or ResponseRequest.model_validate({**row.request["asked"], "input": ""})
        run.log.append(*self._writer.queue())

    async def run(self) -> None:
        """Make it, trying again while it is refused for reasons that pass."""
        if self._run.row.attempts > MAX_ATTEMPTS:
            message = f"The server stopped {MAX_ATTEMPTS} times while the response was being made. Ask again."
            await self._ending.fail(ApiError(500, message, type="server_error", code="interrupted"))
            return
        tries = 0
        last_try = SYSTEM_CLOCK.now() + self._serving.config.responses.wait_s
        while True:
            record = RequestRecord(self._run.id, endpoint="/v1/responses", body_bytes=self._run.body_bytes)
            try:
                await self._try(record)
                record.reply.status = 200
                return
            except asyncio.CancelledError:
                record.reply.status = CLIENT_LEFT
                raise
            except Exception as error:
                refusal = to_api_error(error)
                record.reply.status, record.reply.error_code = refusal.status, refusal.code or refusal.type
                passes = refusal.status in _BUSY and refusal.code != "insufficient_quota"  # waiting earns no money
                if self._writer.begun or not passes or SYSTEM_CLOCK.now() >= last_try:
                    await self._ending.fail(error)
                    return
                tries += 1
                pause_s = min(30.0, float(refusal.headers.get("retry-after", RETRY_AFTER_S * 2 ** min(tries, 5))))
            finally:
                if self._run.stop_reason == "lost":  # the lock is that of the gateway that took it over
                    self._serving.responses.locked.discard(self._run.id)
                await record.close()
                tell_ended(self._serving.steps.observers, record, "background response")
            await asyncio.sleep(pause_s)

    async def _try(self, record: RequestRecord) -> None:
        serving, run = self._serving, self._run
        record.principal = run.principal or await _find_principal(serving, run)
        check_endpoint(record.principal, record.endpoint)
        run.principal = None  # a later try looks again: the key may be revoked by then
        self._input = await reopen_input(serving, record, self._request, self._input)
        seed, record.seed_drawn = run.row.request["seed"], True
        record.cache = CacheOptions.model_validate(run.row.request.get("cache", {}))
        made = await run_response(serving, record, self._request, self._input, self._ending, seed)
        noted = False
        async with aclosing(made.events()) as batches:
            async for batch in batches:
                run.log.append(*batch)
                if not noted:
                    noted = True
                    await self._note_begun()

    async def stopped(self) -> None:
        """Stop it from outside. Where its client did that, what has been written is stored."""
        await (self._ending.cancel() if self._run.stop_reason == "cancelled" else self._ending.drop())

    async def forget_calls(self) -> None:
        """Drop what was kept for another gateway that might have gone on with it."""
        if self._request.hosted_tools and self._ending.state is State.ENDED:
            await self._serving.tools.runner.forget(self._run.id)

    def log_end(self) -> None:
        self._run.log.append(*self._ending.take_last_events())

    async def _note_begun(self) -> None:
        body = msgspec.to_builtins(self._writer.response)
        try:
            await stored.note_begun(self._serving.store, self._serving.responses.gateway_id, body)
        except StoreAwayError as error:  # its end will be written all the same
            _log.debug("background response %s: %s", self._run.id, error)


async def _find_principal(serving: ResponsesContext, run: BackgroundRun) -> Principal:
    """The sender of the request, as of now: a key may have been revoked since."""
    principal = await find_bearer(serving.store, run.owner, run.row.request["key_id"])
    if principal is None:
        message = "The sender of the request may no longer ask for this response."
        raise ApiError(401, message, code="invalid_api_key")
    return principal
