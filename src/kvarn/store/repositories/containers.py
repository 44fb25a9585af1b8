"""Containers of the code interpreter, and the files in them. A file that is written again gets another id."""

from __future__ import annotations

from collections.abc import AsyncIterable
from dataclasses import dataclass

from sqlalchemy import Select, Update, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError
from kvarn.store.ids import is_id, new_id
from kvarn.store.models import Container, File
from kvarn.store.models.files import IN_CONTAINER, INCOMPLETE
from kvarn.store.owner import Owner
from kvarn.store.repositories.files import FileWriter, drop_file
from kvarn.store.repositories.pages import Cursor, Page, read_page
from kvarn.store.repositories.queries import find_one, given_values, owned_by
from kvarn.store.repositories.retention import drop_containers
from kvarn.store.repositories.stored_bytes import ROW_BYTES, storing


def new_container(owner: Owner, *, name: str, idle_s: int, memory_mib: int, now: int) -> Container:
    """A container that is not stored yet; see `add_container`."""
    return Container(
        id=new_id("cntr_"),
        organization_id=owner.organization_id,
        project_id=owner.project_id,
        name=name,
        created_at=now,
        last_active_at=now,
        expires_at=now + idle_s,
        idle_s=idle_s,
        memory_mib=memory_mib,
        counted_bytes=ROW_BYTES,
    )


async def add_container(store: Store, container: Container) -> None:
    async with storing(store, container.organization_id, ROW_BYTES) as session:
        session.add(container)


async def find_container(store: Store, owner: Owner, container_id: str) -> Container:
    async with store.reading() as session:
        return await _find(session, store, owner, container_id)


async def list_containers(store: Store, owner: Owner, cursor: Cursor, name: str | None = None) -> Page[Container]:
    living = Container.expires_at > int(store.now())
    query = owned_by(owner, Container).where(living, *given_values((Container.name, name)))
    async with store.reading() as session:
        return await read_page(session, query, cursor, (Container.created_at, Container.id))


async def delete_container(store: Store, owner: Owner, container_id: str) -> None:
    """Delete a container and its files. It is gone at once; its files go in steps, which the sweep would end."""
    async with store.transaction() as session:
        container = await _find(session, store, owner, container_id, to_change=True)
        container.expires_at = 0
    await drop_containers(store, Container, Container.id == container_id)


@dataclass(frozen=True, slots=True)
class Use:
    """A use of a container by an interpreter."""

    container: Container
    is_first: bool
    """No code has been run in it before."""
    is_last_user: bool
    """This interpreter was the last to use it: its variables are those that the code before left."""


async def use_container(store: Store, owner: Owner, container_id: str, interpreter_id: str) -> Use:
    """Note the use of a container, which lives on from now."""
    async with store.transaction() as session:
        container = await _find(session, store, owner, container_id, to_change=True)
        before, container.interpreter_id = container.interpreter_id, interpreter_id
        _touch(container, int(store.now()))
    return Use(container, before is None, before == interpreter_id)


async def list_container_files(store: Store, owner: Owner, container_id: str, cursor: Cursor) -> Page[File]:
    await find_container(store, owner, container_id)
    async with store.reading() as session:
        return await read_page(session, _files(container_id), cursor, (File.created_at, File.id))


async def all_container_files(store: Store, container: Container) -> list[File]:
    async with store.reading() as session:
        return list(await session.scalars(_files(container.id)))


async def find_container_file(store: Store, owner: Owner, container_id: str, file_id: str) -> File:
    await find_container(store, owner, container_id)
    async with store.reading() as session:
        missing = f"There is no file {file_id[:80]!r} in the container."
        return await find_one(session, _files(container_id).where(File.id == file_id[:64]), missing)


async def write_container_file(
    store: Store, container: Container, path: str, content: AsyncIterable[bytes], *, source: str, max_bytes: int
) -> File:
    """Write a file into a container; one of the same path goes. `source`: `user` or `assistant`. Raises
    `StorageFullError`; `ContainerFullError` where its files would have more than `max_bytes` together; and
    `NotFoundError` where it has expired meanwhile."""
    owner = Owner(container.organization_id, container.project_id)
    async with FileWriter(store, owner, part_of=container) as writer:
        async for piece in content:
            await writer.write(piece)
            if writer.size > max_bytes:
                raise ContainerFullError(max_bytes)
        file_id = await writer.finish()
        async with store.transaction() as session:
            kept = await _find(session, store, owner, container.id, to_change=True)
            _touch(kept, int(store.now()))
            there = list(await session.scalars(_files(container.id)))
            replaced = [each for each in there if each.filename == path]
            if sum(each.size for each in there if each.filename != path) + writer.size > max_bytes:
                raise ContainerFullError(max_bytes)
            file = await session.get(File, file_id)
            if file is None:
                raise NotFoundError(f"The file {file_id} was given up before its end.")
            file.filename, file.purpose, file.status, file.expires_at = path, source, IN_CONTAINER, None
            await session.execute(_hide([each.id for each in replaced]))
    for each in replaced:
        await drop_file(store, each.id)
    return file


async def delete_container_file(store: Store, owner: Owner, container_id: str, file_id: str) -> None:
    file = await find_container_file(store, owner, container_id, file_id)
    async with store.transaction() as session:
        await session.execute(_hide([file.id]))
    await drop_file(store, file.id)


class ContainerFullError(Exception):
    """The files of a container would have more bytes together than one may hold."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"The files of a container have at most {max_bytes // 2**20} MiB together.")


def _touch(container: Container, now: int) -> None:
    container.last_active_at, container.expires_at = now, now + container.idle_s


def _hide(file_ids: list[str]) -> Update:
    return update(File).where(File.id.in_(file_ids)).values(status=INCOMPLETE, expires_at=0)


def _files(container_id: str) -> Select[File]:
    return select(File).where(File.container_id == container_id, File.status == IN_CONTAINER)


async def _find(
    session: AsyncSession, store: Store, owner: Owner, container_id: str, *, to_change: bool = False
) -> Container:
    missing = f"There is no container {container_id[:80]!r}: it may have expired, or been deleted."
    if not is_id(container_id):
        raise NotFoundError(missing)
    query = owned_by(owner, Container).where(Container.id == container_id, Container.expires_at > int(store.now()))
    return await find_one(session, query, missing, to_change=to_change)
