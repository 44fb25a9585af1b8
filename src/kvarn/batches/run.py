"""One batch, from state to state: checked, run line by line, written to files."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from kvarn.answers.errors import STORAGE_FULL
from kvarn.batches.endpoints import answering_model
from kvarn.batches.items import BatchItems
from kvarn.batches.job import BatchJob, EndReason
from kvarn.batches.line import unanswered
from kvarn.batches.validation import InputCheck, split_lines
from kvarn.fairness.semaphore import FairSemaphore
from kvarn.responses.background_runs import ResponsesContext
from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError
from kvarn.store.models import Batch
from kvarn.store.owner import Owner
from kvarn.store.repositories.batches.batches import OVER, BatchStatus, finish_batch, move_batch
from kvarn.store.repositories.batches.lines import (
    FIRST,
    Line,
    Result,
    add_lines,
    delete_lines,
    open_lines,
    read_results,
)
from kvarn.store.repositories.contents import read_content
from kvarn.store.repositories.files import FileWriter, find_file
from kvarn.wire.openai.batches import BatchFault

_LINES_AT_ONCE = 200
_RESULTS_AT_ONCE = 50
_BYTES_AT_ONCE = 1024 * 1024
_CHECKED_AT_ONCE = 32
"""Lines checked before the event loop may turn to others."""
_DAY_S = 24 * 3600

_UNANSWERED = {
    BatchStatus.EXPIRED: (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    BatchStatus.CANCELLED: ("batch_cancelled", "This request was not executed: the batch was cancelled."),
}

_FULL = "its organisation stored as much as it may (the server's retention.max_stored_bytes) until its window was over"
_NO_ROOM = (STORAGE_FULL, f"This request was not executed: {_FULL}. Make room and send it again.")

_log = logging.getLogger("kvarn.batches")


@dataclass(slots=True)
class BatchRun:
    """Brings a batch as far as it will go."""

    serving: ResponsesContext
    job: BatchJob
    places: Mapping[str, FairSemaphore]
    """See `BatchItems`."""

    async def run(self) -> None:
        """Work on the batch until it is over or preempted. Raises `LeaseLostError`."""
        job = self.job
        if job.row.status == BatchStatus.VALIDATING:
            await self._validate()
        if job.row.status == BatchStatus.IN_PROGRESS:
            await BatchItems(self.serving, job, self.places).run()
            preempted = job.preempted.is_set() and job.end_reason is None
            if preempted and await open_lines(self.serving.store, job.id, FIRST, 1):
                return
            await self._leave_progress()
        if job.row.status in (BatchStatus.FINALIZING, BatchStatus.CANCELLING):
            await self._finalise()

    async def _validate(self) -> None:
        endpoint, config = self.job.row.endpoint, self.serving.config.batches
        answering = partial(answering_model, self.serving, endpoint)
        check = InputCheck(endpoint, config.max_lines, config.max_line_bytes, answering)
        await delete_lines(self.serving.store, self.job.row.id)  # of a gateway that died at it
        try:
            await self._read_input(check)
        except NotFoundError as error:
            check.faults.append(BatchFault(code="invalid_input_file", message=str(error), param="input_file_id"))
        if check.faults:
            await delete_lines(self.serving.store, self.job.row.id)
            errors = [msgspec.to_builtins(fault) for fault in check.faults]
            await self._finish({BatchStatus.VALIDATING}, BatchStatus.FAILED, {}, errors=errors)
        else:
            await self._move({BatchStatus.VALIDATING}, BatchStatus.IN_PROGRESS, total=check.total, model=check.model)
        if self.job.row.status == BatchStatus.CANCELLING:
            await delete_lines(self.serving.store, self.job.row.id)

    async def _read_input(self, check: InputCheck) -> None:
        batch = self.job.row
        file = await find_file(self.serving.store, self.job.owner, batch.input_file_id)
        found: list[Line] = []
        size = 0
        async with (
            aclosing(read_content(self.serving.store, file)) as chunks,
            aclosing(split_lines(chunks, self.serving.config.batches.max_line_bytes)) as lines,
        ):
            async for number, text in lines:
                if check.hopeless or self.job.end_reason is EndReason.CANCELLED:
                    break
                line = check.take(number, text)
                if line is not None:
                    found.append(line)
                    size += len(line.body)
                if len(found) >= _LINES_AT_ONCE or size >= _BYTES_AT_ONCE:
                    await add_lines(self.serving.store, batch.id, found)
                    found, size = [], 0
                elif number % _CHECKED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            else:
                check.end()
        if found:
            await add_lines(self.serving.store, batch.id, found)

    async def _leave_progress(self) -> None:
        """No more lines are run: all are answered, or there is a reason to stop."""
        job = self.job
        if job.end_reason is EndReason.KEY_GONE:
            fault = BatchFault(code="invalid_api_key", message=f"The batch was cancelled: {job.end_reason.value}.")
            errors = [msgspec.to_builtins(fault)]
            await self._move({BatchStatus.IN_PROGRESS}, BatchStatus.CANCELLING, errors=errors)
        elif job.full and job.row.completed + job.row.failed < job.row.total:
            errors = [msgspec.to_builtins(BatchFault(code=STORAGE_FULL, message=f"The batch has expired: {_FULL}."))]
            await self._move({BatchStatus.IN_PROGRESS}, BatchStatus.FINALIZING, errors=errors)
        else:
            await self._move({BatchStatus.IN_PROGRESS}, BatchStatus.FINALIZING)

    async def _finalise(self) -> None:
        batch = self.job.row
        origin, status = BatchStatus(batch.status), BatchStatus.COMPLETED
        if batch.status == BatchStatus.CANCELLING:
            status = BatchStatus.CANCELLED
        elif batch.completed + batch.failed < batch.total:
            status = BatchStatus.EXPIRED

        full = any(fault["code"] == STORAGE_FULL for fault in batch.errors)

        def error_line(result: Result) -> bytes:
            why = _NO_ROOM if full else _UNANSWERED[status]
            return unanswered(batch.id, result.line, result.custom_id, *why)

        async with _result_files(self.serving.store, batch, error_line) as files:
            await self._finish({origin}, status, files)
            assert self.job.row.status == status, "only who holds a batch takes it out of these states"
        await delete_lines(self.serving.store, batch.id)

    async def _move(self, origin: set[BatchStatus], status: BatchStatus, **values: Any) -> None:
        job = self.job
        async with job.changing:
            job.row = await move_batch(self.serving.store, job.holder, job.row.id, origin, status, **values)

    async def _finish(
        self, origin: set[BatchStatus], status: BatchStatus, files: dict[str, dict[str, Any]], **values: Any
    ) -> None:
        job = self.job
        days = self.serving.config.retention.files_days
        kept_s = job.row.output_expires_after_s or (days and days * _DAY_S)
        job.finishing = True
        async with job.changing:
            job.row = await finish_batch(
                self.serving.store, job.holder, job.row.id, origin, status, files, kept_s, **values
            )
        job.finishing = job.row.status in OVER  # its client may have cancelled it meanwhile
        _log.info("batch %s is %s", job.row.id, job.row.status)


@asynccontextmanager
async def _result_files(
    store: Store, batch: Batch, unanswered: Callable[[Result], bytes]
) -> AsyncGenerator[dict[str, dict[str, str]], None]:
    """Write the output and the error file, not yet to be seen; the fields of `publish_file` by the batch's column. An
    empty one is not made; if the block fails, nothing is left of them. `unanswered` makes the error file's line of a
    request without an answer."""
    owner = Owner(batch.organization_id, batch.project_id)
    # Not counted as long as the lines with the same answers count.
    async with FileWriter(store, owner, counted=False) as output, FileWriter(store, owner, counted=False) as errors:
        after = 0
        while results := await read_results(store, batch.id, after, _RESULTS_AT_ONCE):
            for result in results:
                content = unanswered(result) if result.content is None else result.content
                await (output if result.failed is False else errors).write(content + b"\n")
            after = results[-1].line
        files = {}
        for column, name, writer in (("output_file_id", "output", output), ("error_file_id", "errors", errors)):
            if writer.size:
                files[column] = {"file_id": await writer.finish(), "filename": f"{batch.id}_{name}.jsonl"}
        yield files
