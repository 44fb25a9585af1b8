"""`/v1/files`: what clients upload, and what batches write."""

from __future__ import annotations

import urllib.parse
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from kvarn.gateway.answer import json_response
from kvarn.gateway.body import read_stream
from kvarn.gateway.files import PURPOSES, describe_file, take_file
from kvarn.gateway.openapi import shapes
from kvarn.gateway.pagination import ListQuery, list_answer
from kvarn.gateway.parameters import Text
from kvarn.gateway.query import check_query
from kvarn.gateway.record import record_of
from kvarn.gateway.state import gateway_of
from kvarn.store.repositories.files.files import delete_file, find_file, list_files, read_content
from kvarn.wire.openai.files import FileDeleted, FileObject
from kvarn.wire.openai.lists import ListObject

router = APIRouter(prefix="/v1/files", tags=["files"])

_UPLOAD_BYTES = 2 * 1024 * 1024
"""Memory that an upload takes at most while it is written: a megabyte, and the same on its way to the database."""
_FORM_BYTES = 64 * 1024
"""What a form may hold besides its file."""
_MAX_LISTED = 10_000
_PURPOSE = Text("purpose", "Of this purpose only.", default=None)
_LIST = ListQuery(_PURPOSE, default_limit=_MAX_LISTED, max_limit=_MAX_LISTED)
_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": list(PURPOSES)},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
                    },
                }
            }
        },
    }
}


class _Content(StreamingResponse):
    """The bytes of a file."""

    media_type = "application/octet-stream"


@router.post("", summary="Upload a file", openapi_extra=_FORM)
@shapes(FileObject)
async def create_file(request: Request) -> Response:
    """Keep a file; it is read and written piece by piece. One larger than `retention.max_file_bytes` gets a 413."""
    check_query(request)
    gateway, record = gateway_of(request), record_of(request.scope)
    max_bytes = gateway.config.retention.max_file_bytes + _FORM_BYTES
    declared = request.headers.get("content-length")
    size = _UPLOAD_BYTES if declared is None else min(int(declared), _UPLOAD_BYTES)
    gateway.hold(record, min(size, gateway.limits.max_held_bytes // 2))  # one is taken however little there is
    body = read_stream(request, max_bytes, gateway.limits.body_timeout_s)
    owner = record.principal.owner
    return json_response(await take_file(gateway, owner, request.headers.get("content-type", ""), body))


@router.get("", summary="List files", openapi_extra=_LIST.described)
@shapes(ListObject[FileObject])
async def list_all_files(request: Request) -> Response:
    """The project's files by age, newest first unless `order` is `asc`; of one `purpose`, or all."""
    gateway, owner = gateway_of(request), record_of(request.scope).principal.owner
    cursor = _LIST.read(request)
    page = await list_files(gateway.store, owner, cursor, _PURPOSE.read(request))
    return json_response(list_answer(page, describe_file))


@router.get("/{file_id}", summary="Describe a file")
@shapes(FileObject)
async def get_file(request: Request, file_id: str) -> Response:
    """One file, without its content."""
    check_query(request)
    owner = record_of(request.scope).principal.owner
    return json_response(describe_file(await find_file(gateway_of(request).store, owner, file_id)))


@router.get("/{file_id}/content", summary="Download a file", response_class=_Content)
async def get_file_content(request: Request, file_id: str) -> Response:
    """The bytes of a file, read as fast as the client takes them."""
    check_query(request)
    store = gateway_of(request).store
    file = await find_file(store, record_of(request.scope).principal.owner, file_id)
    headers = {
        "content-length": str(file.size),
        "content-disposition": f"attachment; filename*=UTF-8''{urllib.parse.quote(file.filename, safe='')}",
        "x-content-type-options": "nosniff",
    }
    return _Content(read_content(store, file), headers=headers)


@router.delete("/{file_id}", summary="Delete a file")
@shapes(FileDeleted)
async def delete_one_file(request: Request, file_id: str) -> Response:
    """Delete a file and its content."""
    check_query(request)
    await delete_file(gateway_of(request).store, record_of(request.scope).principal.owner, file_id)
    return json_response(FileDeleted(id=file_id))
