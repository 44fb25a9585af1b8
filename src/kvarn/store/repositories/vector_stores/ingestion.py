"""Ingestion of files of vector stores: which are open, and who works on each, under a lease."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Update, and_, case, exists, or_, select, update

from kvarn.store.engine import Store
from kvarn.store.models import File, VectorStore, VectorStoreFile
from kvarn.store.models.files import PROCESSED
from kvarn.store.owner import Owner
from kvarn.store.repositories.row_deletion import Condition
from kvarn.store.repositories.vector_stores.deletion import delete_chunks, remove_files

_AT_ONCE = 25
_IS_OPEN = or_(VectorStoreFile.status == "in_progress", VectorStoreFile.stale)


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file that this gateway ingests, as it was when it was taken."""

    row: VectorStoreFile
    owner: Owner
    embedding_model: str | None

    @property
    def key(self) -> tuple[str, str]:
        return self.row.store_id, self.row.file_id


async def claim_file(
    store: Store, holder: str, lease_s: float, last: Collection[str] = (), never: Collection[str] = ()
) -> OpenFile | None:
    """Take the oldest file that no gateway works on; those of the organisations `last` come last, of `never` not at
    all. New files come before those that wait for vectors of another embedder."""
    now = int(store.now())
    is_free = or_(VectorStoreFile.leased_until.is_(None), VectorStoreFile.leased_until <= now)
    query = select(VectorStoreFile.store_id, VectorStoreFile.file_id, VectorStore)
    query = query.join(VectorStore, VectorStore.id == VectorStoreFile.store_id)
    query = query.where(_IS_OPEN, is_free, ~VectorStore.hidden, VectorStore.organization_id.not_in(never))
    turn = case((VectorStore.organization_id.in_(last), 1), else_=0)
    age = VectorStoreFile.created_at, VectorStoreFile.store_id, VectorStoreFile.file_id
    async with store.reading() as session:  # mostly there is none: finding that out must not block writers
        found = (await session.execute(query.order_by(turn, VectorStoreFile.stale, *age).limit(1))).one_or_none()
    if found is None:
        return None
    store_id, file_id, of = found
    taken = {"leased_by": holder, "leased_until": now + int(lease_s), "attempts": VectorStoreFile.attempts + 1}
    statement = update(VectorStoreFile).where(_is(store_id, file_id), _IS_OPEN, is_free)
    async with store.transaction() as session:
        row = (await session.execute(statement.values(taken).returning(VectorStoreFile))).scalar_one_or_none()
    return None if row is None else OpenFile(row, Owner(of.organization_id, of.project_id), of.embedding_model)


async def renew_files(
    store: Store, holder: str, keys: Collection[tuple[str, str]], lease_s: float
) -> set[tuple[str, str]]:
    """Keep working on these; those that still are the holder's: others were cancelled, deleted or taken over."""
    until, held = {"leased_until": int(store.now()) + int(lease_s)}, set[tuple[str, str]]()
    async with store.transaction() as session:
        for key in sorted(keys):
            if await session.scalar(_mine(holder, key).values(until).returning(VectorStoreFile.file_id)) is not None:
                held.add(key)
    return held


async def note_progress(store: Store, holder: str, key: tuple[str, str], progress: float) -> bool:
    """Say how far an ingestion is; False where it is no longer the holder's."""
    return await _change(store, _mine(holder, key).values(progress=progress))


async def finish_file(
    store: Store,
    holder: str,
    key: tuple[str, str],
    *,
    version: str,
    embedder: str,
    usage_bytes: int,
    again_s: float | None = None,
) -> bool:
    """End an ingestion; False where it is no longer the holder's. What was made is kept, however much the organisation
    stores. `again_s`: its vectors could not be made, and are to be tried again after so many seconds."""
    done: dict[str, Any] = {
        "status": "completed",
        "progress": 1.0,
        "version": version,
        "embedder": embedder,
        "usage_bytes": usage_bytes,
        "stale": again_s is not None,
        "attempts": 0,
        "leased_by": None,
        "leased_until": None if again_s is None else int(store.now() + again_s),
    }
    before = select(VectorStoreFile.usage_bytes).where(_is(*key)).with_for_update()
    async with store.transaction() as session:
        await session.execute(select(VectorStore.id).where(VectorStore.id == key[0]).with_for_update())
        old = await session.scalar(before) or 0
        if await session.scalar(_mine(holder, key).values(done).returning(VectorStoreFile.file_id)) is None:
            return False
        grown = {"counted_bytes": VectorStore.counted_bytes + usage_bytes - old}
        await session.execute(update(VectorStore).where(VectorStore.id == key[0]).values(grown))
    return True


async def fail_file(store: Store, holder: str, key: tuple[str, str], code: str, message: str) -> bool:
    """End an ingestion with OpenAI's error; False where it is no longer the holder's. What was found of the file before
    is found as it was."""
    failed = {"status": "failed", "stale": False, "error_code": code, "error_message": message[:512]}
    return await _change(store, _mine(holder, key).values(**failed, leased_by=None, leased_until=None))


async def postpone_file(store: Store, holder: str, key: tuple[str, str], pause_s: float) -> None:
    """Let a gateway begin it again after a pause, as if for the first time."""
    later = {"leased_by": None, "leased_until": int(store.now() + pause_s), "attempts": 0}
    await _change(store, _mine(holder, key).values(later))


async def release_file(store: Store, holder: str, key: tuple[str, str]) -> None:
    """Let another gateway begin it again: one that was stopped in order does not count."""
    free = {"leased_by": None, "leased_until": None, "attempts": VectorStoreFile.attempts - 1}
    await _change(store, _mine(holder, key).values(free))


async def remove_expired(store: Store) -> None:
    """Take files out of their vector stores that have expired: searches find them no longer than a look at the jobs
    takes, however seldom the sweep deletes them."""
    await _remove(store, VectorStoreFile.expires_at <= int(store.now()))


async def remove_lost(store: Store) -> None:
    """Take files out of their vector stores that were deleted by a gateway of an older release, which knows of none."""
    uploaded = exists().where(File.id == VectorStoreFile.file_id, File.status == PROCESSED)
    await _remove(store, ~uploaded)


async def _remove(store: Store, condition: Condition) -> None:
    columns = VectorStoreFile.store_id, VectorStoreFile.file_id
    while True:
        async with store.reading() as session:
            found = (await session.execute(select(*columns).where(condition).limit(_AT_ONCE))).all()
        if not found:
            return
        async with store.transaction() as session:
            removed = [await remove_files(session, _is(*key), int(store.now())) for key in found]
        for each in removed:
            await delete_chunks(store, each)


async def read_models(store: Store) -> dict[str | None, Owner]:
    """The embedding models that vector stores with passages ask for (None: the server's), each with an owner of such a
    store."""
    columns = VectorStore.embedding_model, VectorStore.organization_id, VectorStore.project_id
    has_passages = VectorStore.id.in_(select(VectorStoreFile.store_id).where(VectorStoreFile.status == "completed"))
    found: dict[str | None, Owner] = {}
    async with store.reading() as session:
        for model in list(await session.scalars(select(VectorStore.embedding_model).where(has_passages).distinct())):
            of_model = VectorStore.embedding_model.is_(None) if model is None else VectorStore.embedding_model == model
            row = (await session.execute(select(*columns).where(has_passages, of_model).limit(1))).one_or_none()
            if row is not None:
                found[model] = Owner(row.organization_id, row.project_id)
    return found


async def mark_stale(store: Store, model: str | None, identity: str) -> int:
    """Mark the files whose vectors another embedder made than the one that the model stands for now, so that they get
    new ones; returns how many. Searches use a store's old vectors until all of its files have new ones."""
    of_model = VectorStore.embedding_model.is_(None) if model is None else VectorStore.embedding_model == model
    stores = select(VectorStore.id).where(of_model, ~VectorStore.hidden)
    is_old = VectorStoreFile.status == "completed", ~VectorStoreFile.stale, VectorStoreFile.embedder != identity
    old = and_(*is_old, VectorStoreFile.store_id.in_(stores))
    async with store.reading() as session:
        if await session.scalar(select(VectorStoreFile.file_id).where(old).limit(1)) is None:
            return 0
    marked = update(VectorStoreFile).where(old).values(stale=True, attempts=0).returning(VectorStoreFile.file_id)
    async with store.transaction() as session:
        return len((await session.scalars(marked)).all())


async def _change(store: Store, statement: Update) -> bool:
    async with store.transaction() as session:
        return await session.scalar(statement.returning(VectorStoreFile.file_id)) is not None


def _mine(holder: str, key: tuple[str, str]) -> Update:
    return update(VectorStoreFile).where(_is(*key), VectorStoreFile.leased_by == holder, _IS_OPEN)


def _is(store_id: str, file_id: str) -> Condition:
    return (VectorStoreFile.store_id == store_id) & (VectorStoreFile.file_id == file_id)
