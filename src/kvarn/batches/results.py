"""The files of a batch that is over: answers in one, errors in the other, each request in exactly one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from kvarn.store.engine import Store
from kvarn.store.models import Batch
from kvarn.store.owner import Owner
from kvarn.store.repositories.batches.lines import Result, read_results
from kvarn.store.repositories.files import FileWriter

_LINES_AT_ONCE = 50


@asynccontextmanager
async def result_files(
    store: Store, batch: Batch, unanswered: Callable[[Result], bytes]
) -> AsyncGenerator[dict[str, dict[str, str]], None]:
    """Write the output and the error file, not yet to be seen. An empty one is not made; if the block fails, nothing is
    left of them.

    Args:
        store: The database.
        batch: Whose they are.
        unanswered: Makes the error file's line of a request without an answer.

    Yields:
        The fields of `publish_file` by the batch's column.

    Raises:
        StoreAwayError: The database does not answer.
    """
    owner = Owner(batch.organization_id, batch.project_id)
    # Not counted as long as the lines with the same answers count.
    output, errors = FileWriter(store, owner, counted=False), FileWriter(store, owner, counted=False)
    try:
        after = 0
        while results := await read_results(store, batch.id, after, _LINES_AT_ONCE):
            for result in results:
                content = unanswered(result) if result.content is None else result.content
                await (output if result.failed is False else errors).write(content + b"\n")
            after = results[-1].line
        files = {}
        for column, name, writer in (("output_file_id", "output", output), ("error_file_id", "errors", errors)):
            if writer.size:
                files[column] = {"file_id": await writer.finish(), "filename": f"{batch.id}_{name}.jsonl"}
        yield files
    except BaseException:
        await output.discard()
        await errors.discard()
        raise
