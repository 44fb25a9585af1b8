"""Files that come in parts. A part is a file that clients do not see; in the end their contents are written one after
another into a file of its own, and the parts go."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError, NotFoundError, StoreError
from kvarn.store.ids import new_id
from kvarn.store.models import File, Upload
from kvarn.store.models.files import PART
from kvarn.store.owner import Owner
from kvarn.store.repositories.contents import read_content
from kvarn.store.repositories.files import FileWriter, drop_file, publish_file
from kvarn.store.repositories.queries import find_owned
from kvarn.store.repositories.stored_bytes import ROW_BYTES, count_file_bytes, storing

PENDING, COMPLETING, COMPLETED, CANCELLED = "pending", "completing", "completed", "cancelled"
LIFETIME_S = 3600
"""An upload that is not completed after an hour is given up."""


async def create_upload(
    store: Store, owner: Owner, *, filename: str, purpose: str, size: int, file_expires_after_s: int | None
) -> Upload:
    now = int(store.now())
    upload = Upload(
        id=new_id("upload_"),
        organization_id=owner.organization_id,
        project_id=owner.project_id,
        filename=filename,
        purpose=purpose,
        status=PENDING,
        size=size,
        created_at=now,
        expires_at=now + LIFETIME_S,
        file_expires_after_s=file_expires_after_s,
        counted_bytes=ROW_BYTES,
    )
    async with storing(store, owner.organization_id, ROW_BYTES) as session:
        session.add(upload)
    return upload


class DigestError(Exception):
    """The content has another MD5 than the client says: the message is its own."""


@dataclass(frozen=True, slots=True)
class UploadChange:
    """A transaction that changes an upload. No other one changes it, or adds a part, until this ends."""

    session: AsyncSession
    upload: Upload

    async def sizes(self) -> dict[str, int]:
        query = select(File.id, File.size).where(File.upload_id == self.upload.id, File.status == PART)
        return {row.id: row.size for row in await self.session.execute(query)}

    async def add_part(self, file_id: str) -> None:
        await self.session.execute(update(File).where(File.id == file_id).values(status=PART))


@asynccontextmanager
async def changing_upload(store: Store, owner: Owner, upload_id: str) -> AsyncGenerator[UploadChange, None]:
    """Change an upload that is under way. Raises `ConflictError` where it has ended."""
    async with store.transaction() as session:
        upload = await find_owned(session, owner, Upload, upload_id, to_change=True)
        status = "expired" if upload.expires_at <= store.now() else upload.status
        if status != PENDING:
            raise ConflictError(f"The upload {upload_id} is {status}: begin another one.")
        yield UploadChange(session, upload)


async def join_parts(
    store: Store, owner: Owner, upload: Upload, part_ids: Sequence[str], *, keep_s: int | None, md5: str | None
) -> File:
    """Write the parts of an upload in the state `completing` into one file, in this order, and let that be seen. The
    upload is pending again if this fails. Raises `DigestError` where the content has another `md5`."""
    digest = hashlib.md5(usedforsecurity=False)
    try:
        async with FileWriter(store, owner, counted=False) as writer:  # not as long as the parts count
            for part_id in part_ids:
                async with aclosing(read_content(store, await _part(store, part_id))) as chunks:
                    async for chunk in chunks:
                        digest.update(chunk)
                        await writer.write(chunk)
            if md5 is not None and digest.hexdigest() != md5.lower():
                raise DigestError(digest.hexdigest())
            file_id, now = await writer.finish(), int(store.now())
            async with store.transaction() as session:
                expires_at = now + keep_s if keep_s else None
                name = {"filename": upload.filename, "purpose": upload.purpose}
                file = await publish_file(session, file_id, **name, now=now, expires_at=expires_at)
                file.counted = True
                await session.execute(update(Upload).where(Upload.id == upload.id).values(status=COMPLETED))
                await count_file_bytes(session, owner.organization_id, file.size + ROW_BYTES)
    except BaseException:
        await asyncio.shield(_reopen(store, upload.id))
        raise
    upload.status = COMPLETED
    with suppress(StoreError):  # what is left of them goes at their expiry
        await drop_parts(store, upload.id)
    return file


async def drop_parts(store: Store, upload_id: str) -> None:
    async with store.reading() as session:
        found = list(await session.scalars(select(File.id).where(File.upload_id == upload_id)))
    for file_id in found:
        await drop_file(store, file_id)


async def _part(store: Store, part_id: str) -> File:
    async with store.reading() as session:
        part = await session.get(File, part_id)
    if part is None:
        raise NotFoundError(f"The part {part_id} was given up.")
    return part


async def _reopen(store: Store, upload_id: str) -> None:
    async with store.transaction() as session:
        await session.execute(update(Upload).where(Upload.id == upload_id).values(status=PENDING))
