"""The requests of a batch, and their answers. Both count in `Batch.counted_bytes`: the requests by the input's size."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from sqlalchemy import bindparam, insert, literal, select, tuple_, update

from kvarn.store.engine import Store
from kvarn.store.models import Batch, BatchLine
from kvarn.store.repositories.batches.batches import LeaseLostError, change_batch
from kvarn.store.repositories.row_deletion import delete_rows

_DELETED_AT_ONCE = 500
_LAST = (1 << 63) - 1  # no line has a number beyond


@dataclass(frozen=True, slots=True)
class Line:
    line: int
    """Number in the input file, from 1."""
    custom_id: str
    body: bytes
    model: str = ""
    """The one that is to answer it; empty where it names none that could be served."""


class OpenLine(NamedTuple):
    """Place of a request without an answer: small, whatever the request's size."""

    model: str
    line: int


FIRST = OpenLine("", 0)  # before all lines


@dataclass(frozen=True, slots=True)
class Answer:
    line: int
    failed: bool
    content: bytes
    """Its line of the output or error file, without the line's end."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class Result(NamedTuple):
    """A line with its answer, where it has one."""

    line: int
    custom_id: str
    failed: bool | None
    content: bytes | None


async def add_lines(store: Store, batch_id: str, lines: Sequence[Line]) -> None:
    """Add requests to a batch. Raises `LeaseLostError` where the batch was deleted."""
    rows = [{"batch_id": batch_id, **{name: getattr(each, name) for name in Line.__slots__}} for each in lines]
    async with store.transaction() as session:
        batch = await session.scalar(select(Batch).where(Batch.id == batch_id).with_for_update())
        if batch is None:
            raise LeaseLostError(f"the batch {batch_id} was deleted")
        await session.execute(insert(BatchLine), rows)


async def open_lines(
    store: Store,
    batch_id: str,
    after: OpenLine,
    count: int,
    *,
    model: str | None = None,
    besides: Collection[str] = (),
) -> list[OpenLine]:
    """The next requests behind `after` without an answer, by the model that they ask for, then in the file's order:
    only those of `model`, or all besides those of some models. Fewer than `count` come only where there are no more.
    Reads little more of the index of open lines than it gives."""
    query = (
        select(BatchLine.model, BatchLine.line)
        .where(BatchLine.batch_id == batch_id, BatchLine.failed.is_(None))
        .order_by(BatchLine.model, BatchLine.line)
        .limit(count)
    )
    async with store.reading() as session:
        if model is not None:
            query = query.where(BatchLine.model == model, BatchLine.line > after.line)
            return [OpenLine(*row) for row in await session.execute(query)]
        found: list[OpenLine] = []
        while len(found) < count:
            behind = tuple_(BatchLine.model, BatchLine.line) > tuple_(*map(literal, after))
            rows = [OpenLine(*row) for row in await session.execute(query.where(behind))]
            found += takewhile(lambda row: row.model not in besides, rows)
            other = next((row.model for row in rows if row.model in besides), None)
            if other is None and len(rows) < count:
                break
            after = rows[-1] if other is None else OpenLine(other, _LAST)  # over all lines of that model at once
        return found[:count]


async def read_line(store: Store, batch_id: str, line: int) -> Line:
    """A request without an answer. Raises `LeaseLostError` where it has one, or is gone."""
    query = select(BatchLine.line, BatchLine.custom_id, BatchLine.body, BatchLine.model).where(
        BatchLine.batch_id == batch_id, BatchLine.line == line, BatchLine.failed.is_(None)
    )
    async with store.reading() as session:
        found = (await session.execute(query)).one_or_none()
    if found is None:
        raise LeaseLostError(f"line {line} of the batch {batch_id} is not open any more: another gateway runs it")
    return Line(*found)


async def answer_lines(store: Store, holder: str, batch_id: str, answers: Sequence[Answer]) -> Batch:
    """Keep answers; a line that has one already keeps it. Counts and tokens of the batch grow with them. They have been
    paid for: they are kept however much their organisation has stored."""
    async with store.transaction() as session:
        lines = [answer.line for answer in answers]
        still_open = select(BatchLine.line).where(
            BatchLine.batch_id == batch_id, BatchLine.line.in_(lines), BatchLine.failed.is_(None)
        )
        free = set(await session.scalars(still_open))
        kept = [answer for answer in answers if answer.line in free]
        if kept:
            # One statement for all. Should another gateway write the same lines at this moment, it has the lease, and
            # `change_batch` undoes this.
            rows = [{"of": answer.line, "failed": answer.failed, "answer": answer.content} for answer in kept]
            statement = update(BatchLine).where(BatchLine.batch_id == batch_id, BatchLine.line == bindparam("of"))
            await (await session.connection()).execute(statement, rows)
        failed = sum(answer.failed for answer in kept)
        return await change_batch(
            session,
            holder,
            batch_id,
            failed=Batch.failed + failed,
            completed=Batch.completed + len(kept) - failed,
            input_tokens=Batch.input_tokens + sum(answer.input_tokens for answer in kept),
            cached_tokens=Batch.cached_tokens + sum(answer.cached_tokens for answer in kept),
            output_tokens=Batch.output_tokens + sum(answer.output_tokens for answer in kept),
            counted_bytes=Batch.counted_bytes + sum(len(answer.content) for answer in kept),
        )


async def read_results(store: Store, batch_id: str, after: int, count: int) -> list[Result]:
    """The next lines behind the line `after`, in the file's order, answered or not."""
    query = (
        select(BatchLine.line, BatchLine.custom_id, BatchLine.failed, BatchLine.answer)
        .where(BatchLine.batch_id == batch_id, BatchLine.line > after)
        .order_by(BatchLine.line)
        .limit(count)
    )
    async with store.reading() as session:
        return [Result(*row) for row in await session.execute(query)]


async def delete_lines(store: Store, batch_id: str) -> None:
    await delete_rows(store, BatchLine, "line", BatchLine.batch_id == batch_id, at_once=_DELETED_AT_ONCE)
