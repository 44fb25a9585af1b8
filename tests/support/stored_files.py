"""Files with contents, as uploads keep them."""

from __future__ import annotations

from kvarn.store.engine import Store
from kvarn.store.models import File
from kvarn.store.owner import Owner
from kvarn.store.repositories.contents import read_content
from kvarn.store.repositories.files import FileWriter, publish_file

CONTENT = bytes(range(256)) * 4096 + b"the end"
"""More than is written at once."""


async def keep(store: Store, owner: Owner, content: bytes = CONTENT) -> File:
    async with FileWriter(store, owner) as writer:
        await writer.write(content)
        file_id = await writer.finish()
    async with store.transaction() as session:
        return await publish_file(session, file_id, filename="a", purpose="batch", now=1, expires_at=None)


async def content_of(store: Store, file: File) -> bytes:
    return b"".join([piece async for piece in read_content(store, file)])
