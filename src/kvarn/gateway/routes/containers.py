"""`/v1/containers`: where the code interpreter runs, and files in there."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from fastapi import Request
from pydantic import Field
from starlette.datastructures import FormData
from starlette.responses import Response

from kvarn.answers.errors import storage_full
from kvarn.gateway.answer import FileContent, file_content
from kvarn.gateway.body import limit_body
from kvarn.gateway.dependencies import GatewayDep, OwnerDep, RecordDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import CHECKED, OrderedQuery, Text, list_answer
from kvarn.gateway.routes.files import BINARY, form_schema, receive_form
from kvarn.gateway.state import Gateway
from kvarn.gateway.uploads import check_size, file_field, read_form, safe_name
from kvarn.store.errors import StorageFullError
from kvarn.store.models import Container, File
from kvarn.store.owner import Owner
from kvarn.store.repositories import containers as stored
from kvarn.store.repositories.containers import ContainerFullError
from kvarn.store.repositories.contents import read_content
from kvarn.store.repositories.files import find_file
from kvarn.tools.code_interpreter.interpreter import shown_path
from kvarn.tools.code_interpreter.provider import container_full, copy_file, fill_container, make_container
from kvarn.wire.openai.containers import (
    ContainerFileObject,
    ContainerFileRequest,
    ContainerObject,
    ContainerRequest,
)
from kvarn.wire.openai.errors import invalid_request
from kvarn.wire.openai.lists import DeletedObject, ListObject

router = json_router("/v1", "containers", CHECKED)

_PIECE_BYTES = 256 * 1024
_MAX_JSON_BYTES = 64 * 1024


class ContainerQuery(OrderedQuery):
    """Which containers."""

    name: Text | None = Field(None, description="Select containers of this name.")


@router.post("/containers", summary="Create a container")
async def create_container(gateway: GatewayDep, owner: OwnerDep, body: ContainerRequest) -> ContainerObject:
    """Make a container for the code interpreter, with copies of files. It expires when it has not been used for
    `expires_after.minutes`, at most `sandbox.code_idle_s`."""
    container = await make_container(gateway.containers, owner, body)
    await fill_container(gateway.containers, owner, container, body.file_ids)
    return _describe(container)


@router.get("/containers", summary="List containers")
async def list_all_containers(
    gateway: GatewayDep, owner: OwnerDep, query: ContainerQuery
) -> ListObject[ContainerObject]:
    """The project's containers by age, newest first unless `order` is `asc`; those that have expired are not there."""
    return list_answer(await stored.list_containers(gateway.store, owner, query.cursor, query.name), _describe)


@router.get("/containers/{container_id}", summary="Describe a container")
async def get_container(gateway: GatewayDep, owner: OwnerDep, container_id: str) -> ContainerObject:
    return _describe(await stored.find_container(gateway.store, owner, container_id))


@router.delete("/containers/{container_id}", summary="Delete a container")
async def delete_one_container(gateway: GatewayDep, owner: OwnerDep, container_id: str) -> DeletedObject:
    """Delete a container and its files. Code that runs in it fails."""
    await stored.delete_container(gateway.store, owner, container_id)
    await gateway.containers.forget(container_id)
    return DeletedObject(id=container_id, object="container.deleted")


_FILE_FORM = form_schema({"file": BINARY})


@router.post("/containers/{container_id}/files", summary="Put a file into a container", openapi_extra=_FILE_FORM)
async def create_container_file(
    request: Request, gateway: GatewayDep, record: RecordDep, owner: OwnerDep, container_id: str
) -> ContainerFileObject:
    """Keep a file under `/mnt/data`: one that comes in a form (`file`), or a copy of an uploaded one (JSON with
    `file_id`). One of the same name is replaced."""
    container = await stored.find_container(gateway.store, owner, container_id)
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        receive = receive_form(request, gateway, record)
        return await read_form(request, receive, lambda form: _keep(gateway, owner, container, form))
    receive = limit_body(request, _MAX_JSON_BYTES, gateway.gateway_config.body_timeout_s, "the body of this route")
    try:
        asked = ContainerFileRequest.model_validate(msgspec.json.decode(await Request(request.scope, receive).body()))
    except ValueError:
        message = "Send a form with 'file', or JSON with 'file_id', the id of an uploaded file."
        raise invalid_request(message, "file_id") from None
    return describe_container_file(await _copy(gateway, owner, container, asked.file_id))


@router.get("/containers/{container_id}/files", summary="List files of a container")
async def list_all_container_files(
    gateway: GatewayDep, owner: OwnerDep, container_id: str, query: OrderedQuery
) -> ListObject[ContainerFileObject]:
    """The files by age, newest first unless `order` is `asc`: those put in and those that code wrote."""
    page = await stored.list_container_files(gateway.store, owner, container_id, query.cursor)
    return list_answer(page, describe_container_file)


@router.get("/containers/{container_id}/files/{file_id}", summary="Describe a file of a container")
async def get_container_file(
    gateway: GatewayDep, owner: OwnerDep, container_id: str, file_id: str
) -> ContainerFileObject:
    return describe_container_file(await stored.find_container_file(gateway.store, owner, container_id, file_id))


@router.get(
    "/containers/{container_id}/files/{file_id}/content",
    summary="Download a file of a container",
    response_class=FileContent,
)
async def get_container_file_content(gateway: GatewayDep, owner: OwnerDep, container_id: str, file_id: str) -> Response:
    """The bytes of a file. Browsers download it: code wrote it, and it is shown nowhere."""
    file = await stored.find_container_file(gateway.store, owner, container_id, file_id)
    return file_content(read_content(gateway.store, file), file.size, file.filename.rpartition("/")[2])


@router.delete("/containers/{container_id}/files/{file_id}", summary="Delete a file of a container")
async def delete_one_container_file(
    gateway: GatewayDep, owner: OwnerDep, container_id: str, file_id: str
) -> DeletedObject:
    await stored.delete_container_file(gateway.store, owner, container_id, file_id)
    return DeletedObject(id=file_id, object="container.file.deleted")


async def _keep(gateway: Gateway, owner: Owner, container: Container, form: FormData) -> ContainerFileObject:
    if "file" not in form and "file_id" in form:
        return describe_container_file(await _copy(gateway, owner, container, str(form["file_id"])))
    upload = file_field(form, "file")
    check_size(upload.size or 0, gateway.config.retention.max_file_bytes, "file")

    async def content() -> AsyncGenerator[bytes, None]:
        while data := await upload.read(_PIECE_BYTES):
            yield data

    store, most = gateway.store, gateway.containers.max_bytes
    path = safe_name(upload.filename or "")
    try:
        file = await stored.write_container_file(store, container, path, content(), source="user", max_bytes=most)
    except ContainerFullError as error:
        raise container_full(error, "file") from None
    except StorageFullError as error:
        raise storage_full(error, "file", "Containers expire by themselves, with their files.") from None
    return describe_container_file(file)


async def _copy(gateway: Gateway, owner: Owner, container: Container, file_id: str) -> File:
    return await copy_file(gateway.containers, container, await find_file(gateway.store, owner, file_id))


def _describe(container: Container) -> ContainerObject:
    expiry: dict[str, Any] = {"anchor": "last_active_at", "minutes": max(1, container.idle_s // 60)}
    return ContainerObject(
        id=container.id,
        created_at=container.created_at,
        last_active_at=container.last_active_at,
        name=container.name,
        status="running",
        expires_after=expiry,
        memory_limit=f"{max(1, container.memory_mib // 1024)}g",
        network_policy={"type": "disabled"},
    )


def describe_container_file(file: File) -> ContainerFileObject:
    return ContainerFileObject(
        id=file.id,
        bytes=file.size,
        container_id=file.container_id or "",
        created_at=file.created_at,
        path=shown_path(file.filename),
        source=file.purpose,
    )
