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

from kvarn.batches.capacity import BATCH_PRIORITY
from kvarn.batches.endpoints import ENDPOINTS
from kvarn.jobs.run_to_completion import run_to_completion
from kvarn.responses.responses_context import ResponsesContext
from kvarn.serving.errors import STORAGE_FULL, to_api_error
from kvarn.serving.record import RequestRecord
from kvarn.store.owner import Principal
from kvarn.store.repositories.batches.lines import Answer, Line
from kvarn.wire.openai.batches import LineResponse, OutputLine
from kvarn.wire.openai.errors import ApiError

_log = logging.getLogger("kvarn.gateway")

_TRY_AGAIN = frozenset({429, 503})
_PASSING = frozenset({"conversation_locked", STORAGE_FULL})
"""Codes of other refusals that pass, or end the whole batch."""
_BY_ENGINE = frozenset({"draining", "model_not_ready", "overloaded", "queue_full", "queue_timeout", "replica_lost"})
"""Codes of refusals that tell of the machine, whoever asks. The others tell of the one who asks (`over_share`, limits,
budgets, a conversation in use) or of another part of the platform (the database, Redis, the moderating model)."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The line was not answered, and may be later."""

    line: Line
    error: ApiError
    retry_after_s: float | None

    @property
    def by_engine(self) -> bool:
        """Whether any other line of the model would have been refused as well."""
        return self.error.code in _BY_ENGINE


def line_id(batch_id: str, line: int) -> str:
    """Name of a line, the same in every run of it: its request id, and its id in the output."""
    return f"batch_req_{hashlib.sha256(f'{batch_id}/{line}'.encode()).hexdigest()[:32]}"


async def run_line(
    serving: ResponsesContext,
    principal: Principal,
    batch_id: str,
    endpoint: str,
    line: Line,
    given_up: Callable[[], Awaitable[None]] | None = None,
) -> Answer | Refused | None:
    """Run a line to its end. What it did is in the ledger when this returns, however it went.

    Args:
        serving: Where it runs.
        principal: Who it acts for.
        batch_id: Its batch.
        endpoint: Path of its operation.
        line: The line.
        given_up: Returns once it shall not wait to be admitted any more.

    Returns:
        None where it was given up while it waited: nothing has been done for it. An answer that is whole is returned
        also where the caller is cancelled while it is settled.
    """
    record = RequestRecord(
        line_id(batch_id, line.line),
        endpoint=endpoint,
        principal=principal,
        least_priority=BATCH_PRIORITY,
        batch_id=batch_id,
        body_bytes=len(line.body),
        client_left=given_up,
    )
    try:
        body = await ENDPOINTS[endpoint](serving, record, line.body)
    except ClientDisconnect:
        return None
    except Exception as error:
        return _failure(record, line, error)
    else:
        return _answer(record, line, 200, body)
    finally:
        with suppress(asyncio.CancelledError):
            await run_to_completion(record.close())


def give_up(batch_id: str, refused: Refused) -> Answer:
    """The answer of a line that is not tried again: what it was refused with last."""
    record = RequestRecord(line_id(batch_id, refused.line.line))
    return _answer(record, refused.line, refused.error.status, refused.error.body())


def unanswered(batch_id: str, line: int, custom_id: str, code: str, message: str) -> bytes:
    """The error file's line for a request that was never run."""
    error = {"code": code, "message": message}
    return msgspec.json.encode(OutputLine(id=line_id(batch_id, line), custom_id=custom_id, response=None, error=error))


def _failure(record: RequestRecord, line: Line, error: Exception) -> Answer | Refused:
    told = to_api_error(error)
    if told.status in _TRY_AGAIN or told.code in _PASSING:
        after = next((value for name, value in told.headers.items() if name.lower() == "retry-after"), None)
        return Refused(line, told, float(after) if after else None)
    if told.status >= 500:
        _log.error("a line of a batch failed", exc_info=error, extra={"request_id": record.request_id})
    return _answer(record, line, told.status, told.body())


def _answer(record: RequestRecord, line: Line, status: int, body: object) -> Answer:
    response = LineResponse(
        status_code=status, request_id=record.request_id, body=body, warnings=record.warnings or UNSET
    )
    output = OutputLine(id=record.request_id, custom_id=line.custom_id, response=response, error=None)
    tallies = [work.tally for work in record.work if work.tally.did_work]  # as on the ledger
    return Answer(
        line.line,
        status != 200,
        msgspec.json.encode(output),
        input_tokens=sum(tally.prompt_tokens for tally in tallies),
        cached_tokens=sum(min(tally.cached_tokens, tally.prompt_tokens) for tally in tallies),
        output_tokens=sum(tally.completion_tokens for tally in tallies),
    )
