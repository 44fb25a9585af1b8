"""`/v1/files`: what clients upload, and what batches write. `/v1/uploads`: files that come in parts."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Request
from pydantic import Field
from starlette.responses import Response
from starlette.types import Receive

from kvarn.answers.held_bytes import HeldBytes
from kvarn.answers.record import RequestRecord
from kvarn.gateway.answer import FileContent, file_content
from kvarn.gateway.anthropic_files import DEFAULT_LIMIT, anthropic_form, file_metadata, file_page, page_cursor
from kvarn.gateway.body import limit_body
from kvarn.gateway.dependencies import GatewayDep, OwnerDep, RecordDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import CHECKED, OrderedQuery, Text, Texts, ignored_query, list_answer
from kvarn.gateway.state import Gateway
from kvarn.gateway.upload_parts import begin_upload, cancel_upload, complete_upload, take_part
from kvarn.gateway.uploads import PURPOSES, describe_file, openai_form, take_file
from kvarn.store.repositories.contents import read_content
from kvarn.store.repositories.files import delete_file, find_file, list_files
from kvarn.wire.anthropic.dialect import ANTHROPIC
from kvarn.wire.anthropic.objects import Deleted, FileMetadata, FilePage
from kvarn.wire.openai.files import FileObject, UploadCompletion, UploadObject, UploadPart, UploadRequest
from kvarn.wire.openai.lists import DeletedObject, ListObject

router = json_router("/v1", "files", CHECKED)

_UPLOAD_BYTES = 2 * 1024 * 1024
"""Memory that an upload takes at most while it is written: a megabyte, and the same on its way to the database."""
_FORM_BYTES = 64 * 1024  # what a form may hold besides its file
_MAX_LISTED = 10_000
BINARY = {"type": "string", "format": "binary"}


def form_schema(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """`openapi_extra` of a route that reads a form with these fields."""
    schema = {"type": "object", "additionalProperties": False, "required": list(required)}
    content = {"schema": {**schema, "properties": required | (optional or {})}}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": content}}}


_FILE_FORM = form_schema(
    {"file": BINARY, "purpose": {"type": "string", "enum": list(PURPOSES)}},
    {
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
    },
)


class FileQuery(OrderedQuery):
    """Which files. `page`, `ids`, `after_id` and `before_id` are for clients of Anthropic's API."""

    limit: int = Field(_MAX_LISTED, ge=1, le=_MAX_LISTED, description="Objects at most.")
    purpose: Text | None = Field(None, description="Select files of this purpose.")
    page: Text | None = Field(None, description="`next_page` of the answer before.")
    after_id: Text | None = Field(None, description="Id of the file behind which the page begins.")
    before_id: Text | None = Field(None, description="Id of the file before which the page ends.")
    ids: Texts = Field(max_length=100, description="These files only.")


_ANTHROPICS = frozenset({"page", "after_id", "before_id", "ids"})
_OPENAIS = frozenset({"purpose", "order", "after"})
"""Parameters of a list that mean something to clients of one of the APIs only."""


@router.post("/files", summary="Upload a file", openapi_extra=_FILE_FORM)
async def create_file(
    request: Request, gateway: GatewayDep, record: RecordDep, owner: OwnerDep
) -> Annotated[FileObject | FileMetadata, FileObject]:
    """Keep a file; it is read and written piece by piece. One larger than `retention.max_file_bytes` gets a 413."""
    receive = receive_form(request, gateway, record)
    if record.reply.dialect is ANTHROPIC:
        return file_metadata(await take_file(gateway, owner, request, receive, anthropic_form))
    return describe_file(await take_file(gateway, owner, request, receive, openai_form))


def receive_form(request: Request, gateway: Gateway, record: RequestRecord) -> Receive:
    """ASGI's `receive` for a form with a file; the memory that it takes while it is read is counted."""
    # The length of one that is compressed says nothing of the file.
    declared = None if "content-encoding" in request.headers else request.headers.get("content-length")
    size = _UPLOAD_BYTES if declared is None else min(int(declared), _UPLOAD_BYTES)
    held = HeldBytes(gateway.held, record)
    held.take(min(size, gateway.gateway_config.max_held_bytes // 2))  # one is taken however little there is
    max_bytes = gateway.config.retention.max_file_bytes + _FORM_BYTES
    return limit_body(request, max_bytes, gateway.gateway_config.body_timeout_s, "retention.max_file_bytes")


@router.get("/files", summary="List files")
async def list_all_files(
    gateway: GatewayDep, record: RecordDep, owner: OwnerDep, query: FileQuery
) -> Annotated[ListObject[FileObject] | FilePage, ListObject[FileObject]]:
    """The project's files by age, newest first unless `order` is `asc`; of one `purpose`, or all. Clients that send
    `anthropic-version` get them in Anthropic's shape, as for all that is done with files."""
    others = _OPENAIS if record.reply.dialect is ANTHROPIC else _ANTHROPICS
    record.reply.warnings += [ignored_query(name) for name in sorted(others & query.model_fields_set)]
    if record.reply.dialect is ANTHROPIC:
        limit = query.limit if "limit" in query.model_fields_set else DEFAULT_LIMIT
        cursor = page_cursor(limit, query.page, query.after_id, query.before_id)
        return await file_page(gateway.store, owner, cursor, query.ids)
    return list_answer(await list_files(gateway.store, owner, query.cursor, query.purpose), describe_file)


@router.get("/files/{file_id}", summary="Describe a file")
async def get_file(
    gateway: GatewayDep, record: RecordDep, owner: OwnerDep, file_id: str
) -> Annotated[FileObject | FileMetadata, FileObject]:
    file = await find_file(gateway.store, owner, file_id)
    return file_metadata(file) if record.reply.dialect is ANTHROPIC else describe_file(file)


@router.get("/files/{file_id}/content", summary="Download a file", response_class=FileContent)
async def get_file_content(gateway: GatewayDep, owner: OwnerDep, file_id: str) -> Response:
    """The bytes of a file, read as fast as the client takes them."""
    file = await find_file(gateway.store, owner, file_id)
    return file_content(read_content(gateway.store, file), file.size, file.filename)


@router.delete("/files/{file_id}", summary="Delete a file")
async def delete_one_file(
    gateway: GatewayDep, record: RecordDep, owner: OwnerDep, file_id: str
) -> Annotated[DeletedObject | Deleted, DeletedObject]:
    """Delete a file and its content. Those of a batch of messages go with it: until then they get a 409."""
    await delete_file(gateway.store, owner, file_id)
    if record.reply.dialect is ANTHROPIC:
        return Deleted(id=file_id, type="file_deleted")
    return DeletedObject(id=file_id, object="file")


@router.post("/uploads", summary="Begin an upload in parts")
async def create_upload(gateway: GatewayDep, owner: OwnerDep, body: UploadRequest) -> UploadObject:
    """Announce a file of so many `bytes`. An upload that is not completed within an hour is given up."""
    return await begin_upload(gateway, owner, body)


@router.post(
    "/uploads/{upload_id}/parts", summary="Add a part to an upload", openapi_extra=form_schema({"data": BINARY})
)
async def add_upload_part(
    request: Request, gateway: GatewayDep, record: RecordDep, owner: OwnerDep, upload_id: str
) -> UploadPart:
    """Keep a part; several may come at once, in any order."""
    return await take_part(gateway, owner, upload_id, request, receive_form(request, gateway, record))


@router.post("/uploads/{upload_id}/complete", summary="Make a file of an upload's parts")
async def end_upload(gateway: GatewayDep, owner: OwnerDep, upload_id: str, body: UploadCompletion) -> UploadObject:
    """Join the parts in the order of `part_ids`; together they have the announced `bytes`."""
    return await complete_upload(gateway, owner, upload_id, body)


@router.post("/uploads/{upload_id}/cancel", summary="Give an upload up")
async def give_up_upload(gateway: GatewayDep, owner: OwnerDep, upload_id: str) -> UploadObject:
    """Delete the parts; no more are taken."""
    return await cancel_upload(gateway, owner, upload_id)
