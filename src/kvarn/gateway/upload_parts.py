"""Uploads in parts: begun, given parts in any order, completed into one file or cancelled."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.types import Receive

from kvarn.gateway import uploads
from kvarn.gateway.query import described
from kvarn.gateway.state import Gateway
from kvarn.store.models import File, Upload
from kvarn.store.owner import Owner
from kvarn.store.repositories.queries import read_owned
from kvarn.store.repositories.uploads import (
    CANCELLED,
    COMPLETING,
    DigestError,
    UploadChange,
    changing_upload,
    create_upload,
    drop_parts,
    join_parts,
)
from kvarn.wire.openai.errors import invalid_request
from kvarn.wire.openai.files import MAX_PARTS, UploadCompletion, UploadObject, UploadPart, UploadRequest


async def begin_upload(gateway: Gateway, owner: Owner, request: UploadRequest) -> UploadObject:
    """Begin an upload of a file of so many bytes. Raises `ApiError` by its purpose or size, or `StorageFullError`."""
    uploads.check_purpose(request.purpose)
    uploads.check_size(request.bytes, gateway.config.retention.max_file_bytes, "bytes")
    expiry = request.expires_after
    upload = await create_upload(
        gateway.store,
        owner,
        filename=uploads.safe_name(request.filename),
        purpose=request.purpose,
        size=request.bytes,
        file_expires_after_s=expiry.seconds if expiry is not None else None,
    )
    return _describe(upload)


async def take_part(gateway: Gateway, owner: Owner, upload_id: str, request: Request, receive: Receive) -> UploadPart:
    """Read a part to its end by `receive` and keep it. Nothing is left of one that is refused. Raises `ApiError`,
    `NotFoundError`, or `ConflictError`: the upload has ended."""
    async with changing_upload(gateway.store, owner, upload_id) as change:  # before the part is read
        upload = change.upload
    return await uploads.read_form(request, receive, lambda form: _keep(gateway, owner, upload, form))


async def _keep(gateway: Gateway, owner: Owner, upload: Upload, form: FormData) -> UploadPart:
    file = uploads.file_field(form, "data")
    async with uploads.file_writer(gateway, owner, file, "data", part_of=upload) as writer:
        if not writer.size:
            raise invalid_request("'data' is empty: a part has at least one byte.", "data")
        part_id = await writer.finish()
        async with changing_upload(gateway.store, owner, upload.id) as change:
            await _check_room(change, writer.size)
            await change.add_part(part_id)
    return UploadPart(id=part_id, created_at=int(gateway.store.now()), upload_id=upload.id)


async def _check_room(change: UploadChange, size: int) -> None:
    sizes = await change.sizes()
    if len(sizes) >= MAX_PARTS:
        raise invalid_request(f"The upload has {len(sizes)} parts, and none may have more. Send larger ones.", "data")
    total = sum(sizes.values()) + size
    if total > change.upload.size:
        why = f"The parts have {total} bytes with this one, and the upload was begun for {change.upload.size}."
        raise invalid_request(why, "data")


async def complete_upload(gateway: Gateway, owner: Owner, upload_id: str, request: UploadCompletion) -> UploadObject:
    """Make one file of the parts, in the order of the request. Raises as `take_part` does."""
    async with changing_upload(gateway.store, owner, upload_id) as change:
        upload = change.upload
        _check_parts(request.part_ids, await change.sizes(), upload.size)
        upload.status = COMPLETING
    keep_s = upload.file_expires_after_s or uploads.default_keep_s(gateway)
    try:
        file = await join_parts(gateway.store, owner, upload, request.part_ids, keep_s=keep_s, md5=request.md5)
    except DigestError as error:
        why = f"The MD5 of the parts in this order is {error}, not {request.md5}. Send other parts, or another order."
        raise invalid_request(why, "md5") from None
    return _describe(upload, file)


def _check_parts(part_ids: Sequence[str], sizes: dict[str, int], size: int) -> None:
    for index, part_id in enumerate(part_ids):
        if part_id not in sizes:
            where = f"part_ids[{index}]"
            raise invalid_request(f"{where!r} is {part_id[:80]!r}: the upload has no such part.", where)
    if len(set(part_ids)) < len(part_ids):
        raise invalid_request("'part_ids' names a part more than once.", "part_ids")
    total = sum(sizes[part_id] for part_id in part_ids)
    if total != size:
        raise invalid_request(
            f"The parts have {total} bytes, and the upload was begun for {size}: send the others first.", "part_ids"
        )


async def cancel_upload(gateway: Gateway, owner: Owner, upload_id: str) -> UploadObject:
    async with changing_upload(gateway.store, owner, upload_id) as change:
        change.upload.status = CANCELLED
    await drop_parts(gateway.store, upload_id)
    return _describe(await read_owned(gateway.store, owner, Upload, upload_id))


def _describe(upload: Upload, file: File | None = None) -> UploadObject:
    return described(
        UploadObject, upload, bytes=upload.size, file=None if file is None else uploads.describe_file(file)
    )
