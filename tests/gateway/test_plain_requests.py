"""Requests that mean the same in other forms: HEAD, slashes too many, compressed bodies, empty fields."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

import kvarn.gateway.routes.files as files_module
from asking import prompt_of
from kvarn.gateway.body import decoding
from kvarn.store.owner import Scopes

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "Hej"}]}
BODY = json.dumps(ASK).encode()


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny", "/metrics", "/health", "/", "/openapi.json"])
def test_head_is_get_without_a_body(client, path):
    answer, whole = client.head(path), client.get(path)
    assert answer.status_code == whole.status_code == 200 and answer.content == b""
    assert answer.headers["content-type"] == whole.headers["content-type"]
    assert client.head("/v1/completions").status_code == 405
    assert client.head("/v1/models/none").status_code == 404


def test_head_of_a_file_reads_nothing_of_it(client, monkeypatch):
    file = client.post("/v1/files", data={"purpose": "user_data"}, files={"file": ("a", b"x" * 600_000)}).json()
    path, read = f"/v1/files/{file['id']}/content", []
    normal = files_module.read_content

    async def watched(*args: Any) -> AsyncGenerator[bytes, None]:
        async for chunk in normal(*args):
            read.append(len(chunk))
            yield chunk

    monkeypatch.setattr(files_module, "read_content", watched)
    answer = client.head(path)
    assert (answer.status_code, answer.headers["content-length"], read) == (200, "600000", [])
    whole = client.get(path)
    assert whole.content == b"x" * 600_000 and sum(read) == 600_000
    assert whole.headers["content-type"] == answer.headers["content-type"] == "application/octet-stream"
    assert client.head("/v1/files/file-none/content").status_code == 404
    client.delete(f"/v1/files/{file['id']}")


def test_slashes_too_many_make_no_other_resource(client):
    for path in ("/v1/models/", "//v1/models", "/v1//models//"):
        assert client.request("GET", str(client.base_url).rstrip("/") + path).json()["object"] == "list"
    assert client.post(CHAT + "/", json=ASK).json()["object"] == "chat.completion"
    assert client.post("/v1/messages/", json=ASK).json()["type"] == "message"


def test_escaped_slashes_belong_to_a_models_name(client):
    answer = client.get("/v1/models/%2Fdata%2Ftiny%2F")
    assert answer.status_code == 404 and "'/data/tiny/'" in answer.json()["error"]["message"]


def test_a_key_that_may_not_ask_a_path_may_not_ask_it_with_more_slashes(server):
    with server.add_tenant("limited-paths", scopes=Scopes(endpoints=("/v1/models",))) as limited:
        assert limited.get(f"{server.url}//v1/models/").status_code == 200
        assert limited.get(f"{server.url}//v1//files/").status_code == 403


@pytest.mark.parametrize(("encoding", "encode"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_body_is_read_within_the_bounds_of_a_plain_one(client, encoding, encode):
    headers = {"content-type": "application/json", "content-encoding": encoding}
    assert client.post(CHAT, content=encode(BODY), headers=headers).status_code == 200
    pieces = iter([encode(BODY)[:10], encode(BODY)[10:]])
    assert client.post(CHAT, content=pieces, headers=headers).status_code == 200
    bomb = client.post(CHAT, content=encode(b" " * 50_000_000), headers=headers)
    assert bomb.status_code == 413 and bomb.json()["error"]["code"] == "request_too_large"
    for broken in (BODY, encode(BODY)[:-3], encode(BODY) + b"more"):
        answer = client.post(CHAT, content=broken, headers=headers)
        assert answer.status_code == 400 and encoding in answer.json()["error"]["message"]


def test_members_of_gzip_are_one_body(client):
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    members = b"".join(gzip.compress(part) for part in (BODY[:10], b"", BODY[10:]))
    assert client.post(CHAT, content=members, headers=headers).status_code == 200
    assert client.post(CHAT, content=iter([members[:40], members[40:]]), headers=headers).status_code == 200
    assert client.post(CHAT, content=members[:-3], headers=headers).status_code == 400


@pytest.mark.parametrize(("encoding", "encode"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
@pytest.mark.parametrize("size", [5_000_000, 1 << 20])
async def test_much_that_comes_in_one_message_is_handed_on_piece_by_piece(encoding, encode, size):
    came, turns = [encode(b"x" * size)], 0

    async def receive() -> Message:
        return {"type": "http.request", "body": came.pop(), "more_body": False}

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    request = Request({"type": "http", "headers": [(b"content-encoding", encoding.encode())]})
    decoded, pieces, more = decoding(request, receive), [], True
    beside = asyncio.create_task(others())
    while more:
        message = await decoded()
        pieces.append(message["body"])
        more = message["more_body"]
    beside.cancel()
    assert b"".join(pieces) == b"x" * size and max(map(len, pieces)) <= 256 * 1024
    assert turns >= size // (256 * 1024) - 1, "others have their turn between two pieces"


def test_an_unknown_encoding_is_told_which_are_known(client):
    for encoding in ("br", "gzip, gzip"):
        headers = {"content-type": "application/json", "content-encoding": encoding}
        answer = client.post(CHAT, content=BODY, headers=headers)
        assert answer.status_code == 415 and answer.headers["accept-encoding"] == "gzip, deflate"
    headers = {"content-type": "application/json", "content-encoding": "identity"}
    assert client.post(CHAT, content=BODY, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "empty",
    [
        *({name: ""} for name in ("grammar", "guided_grammar", "guided_regex", "guided_json", "user", "cache_salt")),
        *({name: []} for name in ("functions", "tools", "stop", "guided_choice", "modalities", "allowed_token_ids")),
        *({name: {}} for name in ("response_format", "stream_options", "structured_outputs", "prediction", "audio")),
        {"tool_choice": "", "service_tier": "", "reasoning_effort": "", "function_call": ""},
        {"structured_outputs": {"grammar": "", "choice": []}},
        {"service_tier": "scale"},
    ],
    ids=str,
)
def test_what_is_empty_asks_for_nothing(client, empty):
    assert client.post(CHAT, json=ASK | empty).status_code == 200


def test_what_asks_for_something_though_it_is_empty_is_not_passed_over(client):
    assert client.post(CHAT, json=ASK | {"web_search_options": {}}).status_code == 400
    assert client.post(CHAT, json=ASK | {"structured_outputs": {"jsn": {}}}).status_code == 400
    free = client.post(CHAT, json=ASK).json()["choices"][0]["message"]["content"]
    assert client.post(CHAT, json=ASK | {"guided_json": {}}).status_code == 200 and free


def test_echoed_parts_of_an_answer_are_taken(server, client):
    parts = [
        {"type": "text", "text": "b", "annotations": [], "logprobs": None},
        {"type": "refusal", "refusal": "No."},
    ]
    cached = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    said = [{"role": "user", "content": [cached]}, {"role": "assistant", "content": parts}, *ASK["messages"]]
    assert client.post(CHAT, json=ASK | {"messages": said}).status_code == 200
    assert prompt_of(server) == "<bos><|user|>a<|assistant|>b\nNo.<|user|>Hej<|assistant|>"


@pytest.mark.parametrize(
    ("path", "messages", "named"),
    [
        ("/v1/messages", [{"role": "user", "content": [{"type": "text", "text": "a", "foo": 1}]}], "content[0].foo"),
        (CHAT, [{"role": "user", "content": [{"type": "text", "text": "a", "foo": 1}]}], "content[0].foo"),
        (CHAT, [{"role": "user", "content": [{"type": "text", "text": 1}]}], "content[0].text"),
        (CHAT, [{"role": "user", "content": [{"type": "text"}]}], "content[0].text"),
        (CHAT, [{"role": "user", "content": 5}], "content"),
    ],
)
def test_an_error_names_the_field_itself(client, path, messages, named):
    error = client.post(path, json=ASK | {"messages": messages}).json()["error"]
    assert f"messages[0].{named}" in error["message"] + "'"
    assert "param" not in error or error["param"] == f"messages[0].{named}"
