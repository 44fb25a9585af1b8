"""What the lines of a batch count for in their organisation's stored bytes; see `stored_bytes.py`."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.models import BatchLine
from kvarn.store.repositories.stored_bytes import PART_BYTES

LINE_BYTES = (
    PART_BYTES
    + func.length(BatchLine.custom_id)
    + func.length(BatchLine.model)
    + func.length(BatchLine.body)
    + func.coalesce(func.length(BatchLine.answer), 0)
)
"""As `Line.counted_bytes`, once it has an answer with that."""


async def bytes_of_lines(session: AsyncSession, batch_id: str) -> int:
    """What all lines of a batch count for."""
    return int(await session.scalar(select(func.sum(LINE_BYTES)).where(BatchLine.batch_id == batch_id)) or 0)
