"""Batches of messages, as Anthropic's API has them: batches of `/v1/messages` whose input comes in the request."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Final

import msgspec

from kvarn.answers.record import RequestRecord
from kvarn.batches.operation import start_batch
from kvarn.batches.validation import split_lines
from kvarn.responses.background_runs import ResponsesContext
from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError
from kvarn.store.models import Batch, File
from kvarn.store.owner import Owner
from kvarn.store.repositories.batches.batches import OVER, BatchStatus, delete_batch
from kvarn.store.repositories.contents import read_content
from kvarn.store.repositories.files import MESSAGE_BATCH, FileWriter, find_file, publish_file
from kvarn.wire.anthropic.batches import BatchCounts, BatchResult, BatchResultLine, MessageBatch, MessageBatchRequest
from kvarn.wire.openai.batches import WINDOW_S, BatchRequest
from kvarn.wire.openai.errors import invalid_request
from kvarn.wire.openai.files import FileExpiry
from kvarn.wire.sse import encode_json

ENDPOINT = "/v1/messages"
_WINDOW: Final = "24h"
_KEPT_S = 29 * 24 * 3600
"""Results are kept for so long, as Anthropic does."""
_MAX_LINE_BYTES = 1 << 30  # more than any answer has
_REST = {BatchStatus.CANCELLED: "canceled", BatchStatus.EXPIRED: "expired", BatchStatus.FAILED: "errored"}
"""Results of requests that were not run, by the batch's status."""
_UNRUN = {"batch_cancelled": "canceled", "batch_expired": "expired"}
"""The same by the code of their line in the error file."""


async def start_message_batch(serving: ResponsesContext, record: RequestRecord, request: MessageBatchRequest) -> Batch:
    """Take a batch: its requests are written into a file, and run as those of any batch."""
    config, principal = serving.config.batches, record.principal
    if len(request.requests) > config.max_lines:
        why = f"'requests' holds {len(request.requests)}: at most {config.max_lines} are allowed (batches.max_lines)."
        raise invalid_request(why, "requests")
    async with FileWriter(serving.store, principal.owner) as writer:
        for index, each in enumerate(request.requests):
            line = {"custom_id": each.custom_id, "method": "POST", "url": ENDPOINT, "body": each.params}
            written = encode_json(line)
            if len(written) > config.max_line_bytes:
                why = f"requests[{index}] has {len(written)} bytes: at most {config.max_line_bytes} are allowed"
                raise invalid_request(f"{why} (batches.max_line_bytes).", f"requests[{index}]")
            await writer.write(written + b"\n")
        file_id, now = await writer.finish(), int(serving.store.now())
        async with serving.store.transaction() as session:
            name = {"filename": "requests.jsonl", "purpose": "batch"}
            kept_s = WINDOW_S[_WINDOW] + _KEPT_S  # as its results, which it stands for where none was run
            await publish_file(session, file_id, **name, now=now, expires_at=now + kept_s)
        asked = BatchRequest(
            input_file_id=file_id,
            endpoint=ENDPOINT,
            completion_window=_WINDOW,
            output_expires_after=FileExpiry(anchor="created_at", seconds=_KEPT_S),
        )
        return await start_batch(serving, principal, asked, id_prefix=MESSAGE_BATCH, total=len(request.requests))


def describe_message_batch(batch: Batch, base_url: str) -> MessageBatch:
    """A batch in Anthropic's shape. `base_url` is the server's, as its client knows it."""
    over = batch.status in OVER
    status = "ended" if over else "canceling" if batch.status == BatchStatus.CANCELLING else "in_progress"
    return MessageBatch(
        id=batch.id,
        processing_status=status,
        request_counts=_counts(batch) if over else BatchCounts(processing=batch.total),
        created_at=_time(batch.created_at),
        expires_at=_time(batch.expires_at),
        ended_at=_time(batch.times[f"{batch.status}_at"]) if over else None,
        cancel_initiated_at=_time(batch.times["cancelling_at"]) if "cancelling_at" in batch.times else None,
        results_url=f"{base_url}{ENDPOINT}/batches/{batch.id}/results" if over else None,
    )


def _counts(batch: Batch) -> BatchCounts:
    counts = {"succeeded": batch.completed, "errored": batch.failed, "canceled": 0, "expired": 0}
    rest = batch.total - batch.completed - batch.failed
    counts[_rest(batch)] += rest
    return BatchCounts(**counts)


def _rest(batch: Batch) -> str:
    return _REST.get(BatchStatus(batch.status), "errored")


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


class _Response(msgspec.Struct):
    body: msgspec.Raw


class _Request(msgspec.Struct):
    custom_id: str


class _Line(msgspec.Struct):
    custom_id: str
    response: _Response | None
    error: dict[str, str] | None


async def message_results(store: Store, owner: Owner, batch: Batch) -> AsyncGenerator[bytes, None]:
    """The results of a batch, a line for each request: those that succeeded first. One that ended before its requests
    were read has no files of results: its state tells what has become of them. Raises `ConflictError` before its
    end."""
    if batch.status not in OVER:
        raise ConflictError(f"The batch {batch.id} has not ended: it has no results yet.")
    files = [
        (await find_file(store, owner, file_id), succeeded)
        for file_id, succeeded in ((batch.output_file_id, True), (batch.error_file_id, False))
        if file_id is not None
    ]
    if not files:
        return _unread(store, await find_file(store, owner, batch.input_file_id), batch)
    return _lines(store, files)


async def _lines(store: Store, files: list[tuple[File, bool]]) -> AsyncGenerator[bytes, None]:
    for file, succeeded in files:
        async with aclosing(_read(store, file)) as lines:
            async for text in lines:
                line = msgspec.json.decode(text, type=_Line)
                yield _written(line.custom_id, _result(line, succeeded))


async def _unread(store: Store, requests: File, batch: Batch) -> AsyncGenerator[bytes, None]:
    kind = _rest(batch)
    why = batch.errors[0]["message"] if batch.errors else ""
    result = _errored(why) if kind == "errored" else BatchResult(type=kind)
    async with aclosing(_read(store, requests)) as lines:
        async for text in lines:
            yield _written(msgspec.json.decode(text, type=_Request).custom_id, result)


async def _read(store: Store, file: File) -> AsyncGenerator[bytes, None]:
    async with aclosing(read_content(store, file)) as chunks, aclosing(split_lines(chunks, _MAX_LINE_BYTES)) as lines:
        async for _, text in lines:
            yield text


def _written(custom_id: str, result: BatchResult) -> bytes:
    return encode_json(BatchResultLine(custom_id=custom_id, result=result)) + b"\n"


def _result(line: _Line, succeeded: bool) -> BatchResult:
    if line.response is not None:
        body = line.response.body
        return BatchResult(type="succeeded", message=body) if succeeded else BatchResult(type="errored", error=body)
    error = line.error or {}
    unrun = _UNRUN.get(error.get("code", ""))
    if unrun is not None:
        return BatchResult(type=unrun)
    return _errored(error.get("message", ""))


def _errored(message: str) -> BatchResult:
    return BatchResult(type="errored", error={"type": "error", "error": {"type": "api_error", "message": message}})


async def delete_message_batch(store: Store, owner: Owner, batch_id: str) -> None:
    await delete_batch(store, owner, batch_id, ENDPOINT)
