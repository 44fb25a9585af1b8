"""Files: uploaded piece by piece, seen by their owner only, gone when they shall be."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy import func, select

from kvarn.config.platform import RetentionConfig
from kvarn.store.models import File, FileChunk
from kvarn.store.owner import ANYBODY
from kvarn.store.repositories.files import FileWriter

MIB = 1024 * 1024


@pytest.fixture
def kept(serve_stored: Any) -> Iterator[Any]:
    """A gateway of its own on each database; files of 3 MiB at most."""
    with serve_stored(config={"retention": RetentionConfig(max_file_bytes=3 * MIB)}, body_timeout_s=1) as server:
        yield server


def rows(server: Any) -> tuple[int, int]:
    """Files, and those with a content, seen by clients or not."""

    async def count() -> tuple[int, int]:
        store = server.gateway.store
        async with store.reading() as session:
            files = await session.scalar(select(func.count()).select_from(File))
            contents = await session.scalar(select(func.count(FileChunk.file_id.distinct())))
        if store.blobs is not None:
            system, root = store.blobs.open()
            contents += len(system.ls(root))
        return int(files or 0), int(contents or 0)

    result: tuple[int, int] = server.do(count())
    return result


def upload(client: httpx.Client, content: bytes = b"x", **fields: str) -> httpx.Response:
    return client.post("/v1/files", data={"purpose": "user_data", **fields}, files={"file": ("a.bin", content)})


def test_the_official_client_keeps_lists_reads_and_deletes_files(kept):
    content = os.urandom(2 * MIB + 12345)
    with kept.sdk() as sdk:
        made = sdk.files.create(
            file=("räksmörgås.bin", content),
            purpose="user_data",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
        assert (made.bytes, made.filename, made.purpose) == (len(content), "räksmörgås.bin", "user_data")
        assert made.expires_at == made.created_at + 3600 and made.status == "processed"
        assert rows(kept) == (1, 1)
        assert sdk.files.retrieve(made.id) == made
        assert sdk.files.content(made.id).read() == content
        others = [sdk.files.create(file=b"{}", purpose="batch").id for _ in range(3)]
        assert {file.id for file in sdk.files.list(limit=2)} == {made.id, *others}
        assert {file.id for file in sdk.files.list(purpose="batch", order="asc")} == set(others)
        assert sdk.files.delete(made.id).deleted
        with pytest.raises(openai.NotFoundError):
            sdk.files.retrieve(made.id)
    assert rows(kept) == (3, 3)


def test_a_file_that_is_too_large_is_refused_before_its_end_and_leaves_nothing(kept):
    with kept.client() as client:
        answer = upload(client, os.urandom(3 * MIB + 1))
        assert answer.status_code == 413 and answer.json()["error"]["param"] == "file"
        declared = upload(client, os.urandom(4 * MIB))
        assert declared.status_code == 413 and "retention.max_file_bytes" in declared.json()["error"]["message"]
        assert upload(client, os.urandom(3 * MIB)).status_code == 200
    assert rows(kept) == (1, 1)


def form_head(length: int, boundary: str = "b") -> bytes:
    lines = [
        "POST /v1/files HTTP/1.1",
        "host: x",
        f"content-type: multipart/form-data; boundary={boundary}",
        f"content-length: {length}",
        "",
        f"--{boundary}",
        'content-disposition: form-data; name="file"; filename="a"',
        "",
        "",
    ]
    return "\r\n".join(lines).encode()


def test_an_upload_cut_short_leaves_nothing(kept, wait_for):
    raw: socket.socket = kept.connect()
    raw.sendall(form_head(2 * MIB) + os.urandom(3 * MIB // 2))
    wait_for(lambda: kept.gateway.held.used, "the upload to begin")
    raw.close()
    wait_for(lambda: not kept.gateway.held.used, "the upload to end")
    assert rows(kept) == (0, 0)


def test_an_upload_that_stalls_is_given_up(kept):
    raw: socket.socket = kept.connect()
    raw.sendall(form_head(2 * MIB) + b"some")
    assert b" 408 " in raw.recv(64)
    raw.close()
    assert rows(kept) == (0, 0)


def test_a_tenant_finds_nothing_of_another(kept):
    with kept.add_tenant("red") as red, kept.add_tenant("blue") as blue:
        mine = upload(red, b"secret").json()["id"]
        for method, path in (("GET", mine), ("GET", f"{mine}/content"), ("DELETE", mine)):
            answer = blue.request(method, f"/v1/files/{path}")
            unknown = blue.request(method, f"/v1/files/{path.replace(mine, 'file-nothing')}")
            assert answer.status_code == unknown.status_code == 404
            assert answer.text.replace(mine, "file-nothing") == unknown.text
        assert blue.get("/v1/files").json()["data"] == []
        assert blue.get("/v1/files", params={"after": mine}).status_code == 404
        assert red.get(f"/v1/files/{mine}/content").content == b"secret"


def test_a_file_past_its_expiry_is_not_found(kept, monkeypatch):
    fields = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    with kept.client() as client:
        made = upload(client, **fields).json()
        store = kept.gateway.store
        monkeypatch.setattr(store, "now", lambda: made["expires_at"] - 1)
        assert client.get(f"/v1/files/{made['id']}").status_code == 200
        monkeypatch.setattr(store, "now", lambda: made["expires_at"])
        assert client.get(f"/v1/files/{made['id']}").status_code == 404
        assert client.get("/v1/files").json()["data"] == []


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"purpose": "vision"}, "purpose", "unsupported_value"),
        ({"purpose": "batch_output"}, "purpose", "invalid_value"),
        ({"colour": "red"}, "colour", "unknown_parameter"),
        ({"expires_after[seconds]": "3600"}, "expires_after[anchor]", "invalid_value"),
        ({"expires_after[anchor]": "created_at"}, "expires_after[seconds]", "invalid_value"),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"},
            "expires_after[seconds]",
            "invalid_value",
        ),
        (
            {"expires_after[anchor]": "last_active_at", "expires_after[seconds]": "3600"},
            "expires_after[anchor]",
            "invalid_value",
        ),
        ({"purpose": "x" * 5000}, "purpose", "invalid_value"),
    ],
)
def test_a_form_that_cannot_be_taken_is_refused_by_name(client, fields, param, code):
    answer = upload(client, **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


def post_form(client: httpx.Client, body: bytes, kind: str = "multipart/form-data; boundary=b") -> tuple[int, str]:
    answer = client.post("/v1/files", content=body, headers={"content-type": kind})
    return answer.status_code, answer.json()["error"]["code"]


FILE_PART = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nxyz\r\n'
PURPOSE_PART = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'


def test_broken_forms_are_refused_in_words(client):
    missing = (400, "missing_required_parameter")
    assert post_form(client, b"{}", "application/json") == (415, "unsupported_media_type")
    assert post_form(client, b"", "multipart/form-data") == (400, "invalid_form")
    assert post_form(client, FILE_PART + PURPOSE_PART) == missing  # the last part has no end
    assert post_form(client, b"nothing of a form") == (400, "invalid_form")
    assert post_form(client, b"--b\r\nx: y\r\n\r\nno name\r\n--b--\r\n") == (400, "invalid_form")
    assert post_form(client, FILE_PART + b"--b--\r\n") == missing
    assert post_form(client, PURPOSE_PART + b"--b--\r\n") == missing
    assert post_form(client, FILE_PART * 2 + PURPOSE_PART + b"--b--\r\n") == (400, "invalid_value")
    headers = b"".join(b"x%d: y\r\n" % i for i in range(1000))
    assert post_form(client, b"--b\r\n" + headers + b"\r\nx\r\n--b--\r\n") == (400, "invalid_form")


def test_a_file_may_come_before_its_purpose_and_names_lose_their_folders(client):
    part = FILE_PART.replace(b'"a"', b'"../../etc/p\x07asswd"')
    form = {"content-type": "multipart/form-data; boundary=b"}
    made = client.post("/v1/files", content=part + PURPOSE_PART + b"--b--\r\n", headers=form).json()
    assert (made["filename"], made["bytes"], made["purpose"]) == ("passwd", 3, "batch")
    answer = client.get(f"/v1/files/{made['id']}/content")
    assert answer.content == b"xyz" and answer.headers["x-content-type-options"] == "nosniff"


def test_a_boundary_cut_anywhere_is_still_found(server):
    body = FILE_PART.replace(b"xyz", b"\r\n--\r\n--c" * 3) + PURPOSE_PART + b"--b--\r\n"
    raw = server.connect()
    raw.sendall(form_head(len(body)).partition(b"--b")[0])
    for position in range(len(body)):
        raw.sendall(body[position : position + 1])
    answer = http.client.HTTPResponse(raw)
    answer.begin()
    assert answer.status == 200 and json.loads(answer.read())["bytes"] == 27
    raw.close()


@pytest.mark.parametrize("query", ["limit=0", "limit=10001", "order=up", "before=file-1"])
def test_a_list_refuses_what_it_does_not_know(client, query):
    answer = client.get(f"/v1/files?{query}")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == query.partition("=")[0]


def test_a_gateway_killed_in_mid_upload_leaves_a_file_that_the_sweep_takes(kept):
    async def write() -> None:
        writer = FileWriter(kept.gateway.store, ANYBODY.owner)
        await writer.write(os.urandom(MIB + 1))

    kept.do(write())
    assert rows(kept) == (1, 1)
    with kept.client() as client:
        assert client.get("/v1/files").json()["data"] == []


@pytest.fixture
def small(serve_stored: Any) -> Iterator[Any]:
    """A gateway on each database whose organisations may store 3 MiB each."""
    with serve_stored(config={"retention": RetentionConfig(max_stored_bytes=3 * MIB)}) as server:
        yield server


def test_an_upload_past_what_may_be_stored_is_refused_until_there_is_room(small):
    with small.add_tenant("red") as red, small.add_tenant("blue") as blue:
        first = upload(red, b"x" * 2 * MIB)
        assert first.status_code == 200
        for content in (b"x" * MIB, b"x" * 20 * MIB):
            refused = upload(red, content)
            error = refused.json()["error"]
            assert (refused.status_code, error["code"], error["param"]) == (413, "storage_full", "file")
            assert "retention.max_stored_bytes" in error["message"]
        assert len(red.get("/v1/files").json()["data"]) == 1
        assert upload(blue, b"x" * 2 * MIB).status_code == 200, "another organisation has room of its own"
        assert red.delete(f"/v1/files/{first.json()['id']}").status_code == 200
        assert upload(red, b"x" * 2 * MIB).status_code == 200
