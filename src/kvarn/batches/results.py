"""Writing the files of a batch that is over: answers to one, errors to the other, each request in exactly one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvarn.store.engine import Store
from kvarn.store.models import Batch
from kvarn.store.owner import Owner
from kvarn.store.repositories.batches.lines import Result, read_results
from kvarn.store.repositories.files.file_writer import FileWriter

_LINES_AT_ONCE = 50


class ResultFiles:
    """The output and the error file of a batch, not yet to be seen.

    Args:
        store: The database.
        batch: Whose they are.
        unanswered: Makes the error file's line of a request without an answer.
    """

    def __init__(self, store: Store, batch: Batch, unanswered: Callable[[Result], bytes]) -> None:
        owner = Owner(batch.organization_id, batch.project_id)
        self._store = store
        self._batch_id = batch.id
        self._unanswered = unanswered
        self._output = FileWriter(store, owner, counted=False)  # as long as the lines with the same answers count
        self._errors = FileWriter(store, owner, counted=False)

    async def write(self) -> dict[str, dict[str, Any]]:
        """Write both; the fields of `publish_file` by the batch's column. An empty file is not made.

        Raises:
            StoreAwayError: The database does not answer; nothing is left of the files.
        """
        try:
            await self._write_lines()
            files = {}
            for column, name, writer in (
                ("output_file_id", "output", self._output),
                ("error_file_id", "errors", self._errors),
            ):
                if writer.size:
                    file_id = await writer.finish()
                    filename = f"{self._batch_id}_{name}.jsonl"
                    files[column] = {"file_id": file_id, "filename": filename}
        except BaseException:
            await self.discard()
            raise
        return files

    async def discard(self) -> None:
        """Leave nothing of them."""
        await self._output.discard()
        await self._errors.discard()

    async def _write_lines(self) -> None:
        after = 0
        while results := await read_results(self._store, self._batch_id, after, _LINES_AT_ONCE):
            for result in results:
                content = self._unanswered(result) if result.content is None else result.content
                writer = self._output if result.failed is False else self._errors
                await writer.write(content + b"\n")
            after = results[-1].line
