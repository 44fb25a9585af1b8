"""`/v1/uploads`: files in parts, through OpenAI's official client and by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, update

from kvarn.config.platform import RetentionConfig
from kvarn.store.models import File, Organization, Upload
from kvarn.store.repositories.retention import delete_expired
from kvarn.store.repositories.stored_bytes import ROW_BYTES

CONTENT = bytes(range(256)) * 3000  # several chunks


@pytest.fixture
def tenant(server: Any, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with server.add_tenant(f"uploads-{request.node.name}") as client:
        yield client


def begin(client: httpx.Client, size: int = len(CONTENT), **fields: Any) -> str:
    body = {"bytes": size, "filename": "a/data.jsonl", "mime_type": "text/plain", "purpose": "batch", **fields}
    answer = client.post("/v1/uploads", json=body)
    assert answer.status_code == 200, answer.text
    upload: dict[str, Any] = answer.json()
    assert (upload["object"], upload["status"], upload["file"]) == ("upload", "pending", None)
    assert upload["expires_at"] == upload["created_at"] + 3600 and upload["filename"] == "data.jsonl"
    return str(upload["id"])


def send(client: httpx.Client, upload_id: str, data: bytes) -> httpx.Response:
    return client.post(f"/v1/uploads/{upload_id}/parts", files={"data": ("blob", data)})


def part(client: httpx.Client, upload_id: str, data: bytes) -> str:
    answer = send(client, upload_id, data)
    assert answer.status_code == 200, answer.text
    assert answer.json()["object"] == "upload.part" and answer.json()["upload_id"] == upload_id
    return str(answer.json()["id"])


def complete(client: httpx.Client, upload_id: str, *part_ids: str, **fields: Any) -> httpx.Response:
    return client.post(f"/v1/uploads/{upload_id}/complete", json={"part_ids": part_ids, **fields})


def stored(server: Any, client: httpx.Client) -> tuple[int, int]:
    """What the organisation's files count for, and their rows, seen or not."""
    own = server.authenticator.principals[client.headers["authorization"].removeprefix("Bearer ")].organization_id

    async def read() -> tuple[int, int]:
        async with server.gateway.store.reading() as session:
            size = await session.scalar(select(Organization.file_bytes).where(Organization.id == own))
            rows = await session.scalar(select(func.count()).where(File.organization_id == own))
        return int(size or 0), int(rows or 0)

    found: tuple[int, int] = server.do(read())
    return found


def test_the_official_client_uploads_a_file_in_parts(sdk):
    upload = sdk.uploads.upload_file_chunked(
        file=CONTENT,
        filename="in.jsonl",
        bytes=len(CONTENT),
        mime_type="text/jsonl",
        purpose="batch",
        part_size=100_000,
        md5=hashlib.md5(CONTENT).hexdigest(),
    )
    assert upload.status == "completed" and upload.file is not None
    assert (upload.file.filename, upload.file.bytes, upload.file.purpose) == ("in.jsonl", len(CONTENT), "batch")
    assert sdk.files.content(upload.file.id).read() == CONTENT
    assert [file.id for file in sdk.files.list()][:1] == [upload.file.id]  # its parts are no files


def test_parts_come_at_once_and_are_joined_in_the_order_asked_for(server, tenant):
    upload = begin(tenant, expires_after={"anchor": "created_at", "seconds": 3600})
    pieces = [CONTENT[start : start + 90_001] for start in range(0, len(CONTENT), 90_001)]
    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(lambda data: part(tenant, upload, data), reversed(pieces)))
    answer = complete(tenant, upload, *reversed(ids)).json()
    assert tenant.get(f"/v1/files/{answer['file']['id']}/content").content == CONTENT
    assert answer["file"]["expires_at"] == answer["file"]["created_at"] + 3600
    assert stored(server, tenant) == (len(CONTENT) + ROW_BYTES, 1)
    assert complete(tenant, upload, *ids).status_code == 409
    assert send(tenant, upload, b"x").status_code == 409


def test_what_cannot_be_joined_is_refused_and_may_be_tried_again(tenant):
    upload, other = begin(tenant, 6), begin(tenant, 6)
    first, second, foreign = part(tenant, upload, b"abc"), part(tenant, upload, b"def"), part(tenant, other, b"abc")
    for ids, param in (
        ((first,), "part_ids"),
        ((first, first), "part_ids"),
        ((first, foreign), "part_ids[1]"),
        ((first, "part_none"), "part_ids[1]"),
    ):
        answer = complete(tenant, upload, *ids)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    answer = complete(tenant, upload, second, first, md5=hashlib.md5(b"abcdef").hexdigest())
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "md5")
    too_much = send(tenant, upload, b"x")
    assert (too_much.status_code, too_much.json()["error"]["param"]) == (400, "data")
    file = complete(tenant, upload, first, second, md5=hashlib.md5(b"abcdef").hexdigest().upper()).json()["file"]
    assert tenant.get(f"/v1/files/{file['id']}/content").content == b"abcdef"


def test_a_cancelled_upload_leaves_nothing_but_its_name(server, tenant):
    upload = begin(tenant)
    part(tenant, upload, CONTENT[:1000])
    assert stored(server, tenant) == (1000 + ROW_BYTES, 1)
    assert tenant.post(f"/v1/uploads/{upload}/cancel").json()["status"] == "cancelled"
    assert stored(server, tenant) == (0, 0)
    refused = send(tenant, upload, b"x")
    assert refused.status_code == 409 and "cancelled" in refused.json()["error"]["message"]
    assert tenant.post(f"/v1/uploads/{upload}/cancel").status_code == 409


def test_an_upload_that_has_expired_takes_no_more_and_goes(server, tenant):
    upload = begin(tenant, 3)
    only = part(tenant, upload, b"abc")

    async def expire() -> None:
        async with server.gateway.store.transaction() as session:
            await session.execute(update(Upload).where(Upload.id == upload).values(expires_at=1))
            await session.execute(update(File).where(File.upload_id == upload).values(expires_at=1))

    server.do(expire())
    for answer in (send(tenant, upload, b"x"), complete(tenant, upload, only)):
        assert answer.status_code == 409 and "expired" in answer.json()["error"]["message"]
    server.do(delete_expired(server.gateway.store, RetentionConfig()))
    assert stored(server, tenant) == (0, 0)


def test_an_upload_is_its_projects(server, tenant):
    upload = begin(tenant, 3)
    only = part(tenant, upload, b"abc")
    with server.add_tenant("uploads-of-another") as other:
        for answer in (
            send(other, upload, b"x"),
            complete(other, upload, only),
            other.post(f"/v1/uploads/{upload}/cancel"),
        ):
            assert answer.status_code == 404
        assert other.get(f"/v1/files/{only}").status_code == 404
    assert tenant.get(f"/v1/files/{only}").status_code == 404  # a part is no file
    assert complete(tenant, upload, only).status_code == 200


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"bytes": 0}, 400, "bytes"),
        ({"bytes": 10**12}, 413, "bytes"),
        ({"purpose": "vision"}, 400, "purpose"),
        ({"purpose": "none"}, 400, "purpose"),
        ({"expires_after": {"anchor": "created_at", "seconds": 1}}, 400, "expires_after.seconds"),
        ({"size": 1}, 400, "size"),
    ],
)
def test_what_no_file_could_be_is_refused_at_once(client, fields, status, param):
    body = {"bytes": 1, "filename": "a", "mime_type": "text/plain", "purpose": "batch", **fields}
    answer = client.post("/v1/uploads", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text


@pytest.mark.parametrize(
    "form",
    [
        {"files": {"data": ("blob", b"")}},
        {"files": {"file": ("blob", b"x")}},
        {"data": {"data": "x"}, "files": {"data": ("blob", b"x")}},
        {"json": {"data": "x"}},
    ],
)
def test_a_part_is_a_form_with_one_file(tenant, form):
    assert tenant.post(f"/v1/uploads/{begin(tenant)}/parts", **form).status_code in (400, 415)


def test_a_batch_runs_what_came_in_parts(runner, wait_for):
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "Hej"}]}
    line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": ask}).encode()
    with runner.client() as client:
        upload = begin(client, len(line))
        ids = [part(client, upload, line[:40]), part(client, upload, line[40:])]
        file = complete(client, upload, *ids).json()["file"]
        asked = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = client.post("/v1/batches", json=asked).json()["id"]
        wait_for(lambda: client.get(f"/v1/batches/{batch}").json()["status"] == "completed", "the batch")
        assert client.get(f"/v1/batches/{batch}").json()["request_counts"]["completed"] == 1
