"""One line of a batch: a request like any other, at the lowest tier."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from msgspec import UNSET
from starlette.requests import ClientDisconnect

from kvarn.admission.demand import BATCH
from kvarn.answers.errors import STORAGE_FULL, to_api_error
from kvarn.answers.observer import tell_ended
from kvarn.answers.record import Deferred, Reply, RequestRecord
from kvarn.answers.turn import TokenUsage
from kvarn.batches.endpoints import Operation
from kvarn.identity.scopes import check_endpoint
from kvarn.jobs.run_to_completion import run_to_completion
from kvarn.observe.traces.traced import CLIENT_LEFT
from kvarn.responses.background_runs import ResponsesContext
from kvarn.store.models import Batch
from kvarn.store.owner import Principal
from kvarn.store.repositories.batches.lines import Answer, Line
from kvarn.wire.dialects import dialect_of
from kvarn.wire.openai.batches import LineResponse, OutputLine
from kvarn.wire.openai.errors import ApiError

_log = logging.getLogger("kvarn.batches")

_TRY_AGAIN = frozenset({429, 503})
_TEMPORARY = frozenset({"conversation_locked", STORAGE_FULL})
"""Codes of other refusals that pass, or end the whole batch."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The line was not answered, and may be later."""

    line: Line
    error: ApiError
    retry_after_s: float | None


def line_id(batch_id: str, line: int) -> str:
    """Name of a line, the same in every run of it: its request id, and its id in the output."""
    return f"batch_req_{hashlib.sha256(f'{batch_id}/{line}'.encode()).hexdigest()[:32]}"


def make_record(
    principal: Principal, batch: Batch, line: Line, preempted: Callable[[], Awaitable[object]]
) -> RequestRecord:
    """The request of a line. Once `preempted` returns it does not wait to be admitted any more."""

    async def leaves() -> None:
        await preempted()

    return RequestRecord(
        line_id(batch.id, line.line),
        endpoint=batch.endpoint,
        principal=principal,
        deferred=Deferred(BATCH, batch.id),
        body_bytes=len(line.body),
        reply=Reply(dialect=dialect_of(batch.endpoint), client_left=leaves),
    )


async def run_line(
    operation: Operation, serving: ResponsesContext, record: RequestRecord, line: Line
) -> Answer | Refused | None:
    """Run a line to its end; None where it left while it waited to be admitted. What it did is in the ledger when this
    returns, however it went. An answer that is whole is returned also where the caller is cancelled while it is
    settled."""
    try:
        check_endpoint(record.principal, record.endpoint)
        body = await operation(serving, record, line.body)
    except ClientDisconnect:
        record.reply.status = CLIENT_LEFT
        return None
    except Exception as error:
        return _failure(record, line, error)
    else:
        record.reply.status = 200
        return _answer(record, line, 200, body)
    finally:
        with suppress(asyncio.CancelledError):
            await run_to_completion(record.close())
        tell_ended(serving.steps.observers, record, "batch line")


def given_up_answer(batch: Batch, refused: Refused) -> Answer:
    """The answer of a line that is not tried again: what it was refused with last."""
    record = RequestRecord(line_id(batch.id, refused.line.line), reply=Reply(dialect_of(batch.endpoint)))
    return _failed(record, refused.line, refused.error)


def unanswered(batch_id: str, line: int, custom_id: str, code: str, message: str) -> bytes:
    """The error file's line for a request that was never run."""
    error = {"code": code, "message": message}
    return msgspec.json.encode(OutputLine(id=line_id(batch_id, line), custom_id=custom_id, response=None, error=error))


def _failure(record: RequestRecord, line: Line, exception: Exception) -> Answer | Refused:
    error = to_api_error(exception)
    record.reply.status, record.reply.error_code = error.status, error.code or error.type
    if error.status in _TRY_AGAIN or error.code in _TEMPORARY:
        after = next((value for name, value in error.headers.items() if name.lower() == "retry-after"), None)
        return Refused(line, error, float(after) if after else None)
    if error.status >= 500:
        _log.error("a line of a batch failed", exc_info=exception, extra={"request_id": record.request_id})
    return _failed(record, line, error)


def _failed(record: RequestRecord, line: Line, error: ApiError) -> Answer:
    return _answer(record, line, error.status, record.reply.dialect.error_body(error, record.request_id))


def _answer(record: RequestRecord, line: Line, status: int, body: object) -> Answer:
    response = LineResponse(
        status_code=status, request_id=record.request_id, body=body, warnings=record.reply.warnings or UNSET
    )
    output = OutputLine(id=record.request_id, custom_id=line.custom_id, response=response, error=None)
    usage = record.turns[-1].usage if record.turns else TokenUsage()
    counted = usage if usage.did_work else TokenUsage()  # as on the ledger
    return Answer(
        line.line,
        status != 200,
        msgspec.json.encode(output),
        input_tokens=counted.prompt_tokens,
        cached_tokens=min(counted.cached_tokens, counted.prompt_tokens),
        output_tokens=counted.completion_tokens,
    )
