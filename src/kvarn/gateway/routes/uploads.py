"""`/v1/uploads`: files that come in parts."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request

from kvarn.gateway.body import limit_body
from kvarn.gateway.dependencies import GatewayDep, OwnerDep, RecordDep
from kvarn.gateway.openapi import JsonRoute
from kvarn.gateway.query import check_query
from kvarn.gateway.routes.files import FORM_BYTES, hold_upload
from kvarn.gateway.upload_parts import begin_upload, cancel_upload, complete_upload, take_part
from kvarn.wire.openai.files import UploadCompletion, UploadObject, UploadPart, UploadRequest

router = APIRouter(prefix="/v1/uploads", tags=["files"], route_class=JsonRoute, dependencies=[Depends(check_query)])

_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["data"],
                    "properties": {"data": {"type": "string", "format": "binary"}},
                }
            }
        },
    }
}


@router.post("", summary="Begin an upload in parts")
async def create_upload(gateway: GatewayDep, owner: OwnerDep, body: UploadRequest) -> UploadObject:
    """Announce a file of so many `bytes`. An upload that is not completed within an hour is given up."""
    return await begin_upload(gateway, owner, body)


@router.post("/{upload_id}/parts", summary="Add a part to an upload", openapi_extra=_FORM)
async def add_upload_part(
    request: Request, gateway: GatewayDep, record: RecordDep, owner: OwnerDep, upload_id: str
) -> UploadPart:
    """Keep a part; several may come at once, in any order."""
    hold_upload(request, gateway, record)
    max_bytes = gateway.config.retention.max_file_bytes + FORM_BYTES
    receive = limit_body(request, max_bytes, gateway.limits.body_timeout_s, "retention.max_file_bytes")
    return await take_part(gateway, owner, upload_id, request, receive)


@router.post("/{upload_id}/complete", summary="Make a file of an upload's parts")
async def end_upload(gateway: GatewayDep, owner: OwnerDep, upload_id: str, body: UploadCompletion) -> UploadObject:
    """Join the parts in the order of `part_ids`; together they have the announced `bytes`."""
    return await complete_upload(gateway, owner, upload_id, body)


@router.post("/{upload_id}/cancel", summary="Give an upload up")
async def give_up_upload(gateway: GatewayDep, owner: OwnerDep, upload_id: str) -> UploadObject:
    """Delete the parts; no more are taken."""
    return await cancel_upload(gateway, owner, upload_id)
