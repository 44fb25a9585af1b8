"""Embeddings through the official client."""

from __future__ import annotations

import base64
import struct
from typing import Any

import msgspec
import pytest


def test_floats_and_base64_carry_the_same_numbers(client):
    body = {"model": "vec", "input": ["ab", "c"]}
    floats = client.post("/v1/embeddings", json=body).json()
    coded = client.post("/v1/embeddings", json={**body, "encoding_format": "base64"}).json()
    unpacked = [list(struct.unpack("<4f", base64.b64decode(each["embedding"]))) for each in coded["data"]]
    assert unpacked == [each["embedding"] for each in floats["data"]]
    assert [each["index"] for each in floats["data"]] == [0, 1]
    assert floats["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


@pytest.mark.parametrize("given", ["hi", ["hi"], [104, 105], [[104, 105]]])
def test_every_form_of_input_is_taken(server, sdk, given):
    answer = sdk.embeddings.create(model="vec", input=given)
    assert server.embed.embedded == [[[104, 105]]]
    assert len(answer.data) == 1 and len(answer.data[0].embedding) == 4


def test_a_batch_goes_to_the_engine_as_one_request(server, sdk):
    assert len(sdk.embeddings.create(model="vec", input=[f"text {i}" for i in range(50)]).data) == 50
    assert [len(batch) for batch in server.embed.embedded] == [50]


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"dimensions": 2}, "dimensions", "unsupported_value"),
        ({"input": ["ok", "x" * 100]}, "input[1]", "context_length_exceeded"),
        ({"input": [[1], [999]]}, "input[1]", "invalid_value"),
        ({"input": [[-1]]}, "input[0]", "invalid_value"),
        ({"input": ""}, "input", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"model": "tiny"}, "model", "model_not_supported"),
    ],
)
def test_what_cannot_be_embedded_is_refused_by_name(client, change, param, code):
    answer = client.post("/v1/embeddings", json={"model": "vec", "input": "hi", **change})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


def test_the_models_own_size_may_be_asked_for(sdk):
    assert len(sdk.embeddings.create(model="vec", input="hi", dimensions=4).data[0].embedding) == 4


@pytest.mark.parametrize(("coding", "status"), [("float", 413), ("base64", 200)])
def test_the_memory_of_an_answer_is_counted_before_the_work(serve, wait_for, coding, status):
    def prepare(server: Any) -> None:
        server.embed.card = msgspec.structs.replace(server.embed.card, embedding_size=1000)

    with serve(prepare, max_held_bytes=1 << 20) as server, server.client() as client:
        body = {"model": "vec", "input": ["a"] * 20, "encoding_format": coding}
        answer = client.post("/v1/embeddings", json=body)
        assert answer.status_code == status
        assert len(server.embed.embedded) == (status == 200)
        wait_for(lambda: server.gateway.held.used == 0, "the memory to be given back")
