"""Vector stores as repositories keep them, without what is read from their files."""

from __future__ import annotations

from typing import Any

from kvarn.store.engine import Store
from kvarn.store.models import File
from kvarn.store.owner import Owner
from kvarn.store.repositories.files import FileWriter, publish_file
from kvarn.store.repositories.vector_stores.attachments import Attachment
from kvarn.store.repositories.vector_stores.stores import SummedStore, create_store


async def keep_file(store: Store, owner: Owner, content: bytes = b"text", expires_at: int | None = None) -> File:
    async with FileWriter(store, owner) as writer:
        await writer.write(content)
        file_id = await writer.finish()
    now = int(store.now())
    async with store.transaction() as session:
        return await publish_file(
            session, file_id, filename="a.txt", purpose="assistants", now=now, expires_at=expires_at
        )


def attachment(file: File, **fields: Any) -> Attachment:
    given = {"attributes": {}, "readers": None, "max_tokens": 800, "overlap_tokens": 400} | fields
    return Attachment(file.id, **given)


async def keep_store(store: Store, owner: Owner, *files: File, days: int | None = None) -> SummedStore:
    fields = {"name": "docs", "description": "", "extra": {}, "embedding_model": None}
    return await create_store(store, owner, fields, days, [attachment(file) for file in files])
