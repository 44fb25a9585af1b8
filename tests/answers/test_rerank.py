"""Reranking and scoring over an embedding model whose vectors are known."""

from __future__ import annotations

import math
import struct
from typing import Any

import httpx
import msgspec
import pytest

from kvarn.answers.encoders.relevance import cosine

ANGLES = {"east": 0.0, "almost east": 0.1, "north east": math.pi / 4, "north": math.pi / 2, "west": math.pi}


@pytest.fixture(autouse=True)
def directions(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that are directions are embedded as such."""

    async def embed(request_id: str, inputs: list[list[int]]) -> list[bytes]:
        server.embed.embedded.append(inputs)
        angles = [ANGLES[bytes(each).decode()] for each in inputs]
        return [struct.pack("<4f", 3 * math.cos(angle), 3 * math.sin(angle), 0, 0) for angle in angles]

    monkeypatch.setattr(server.embed, "embed", embed)


def rank(client: httpx.Client, path: str = "/v1/rerank", **fields: Any) -> dict[str, Any]:
    body = {"model": "vec", "query": "east", "documents": ["west", "north", {"text": "almost east"}], **fields}
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_documents_come_back_by_relevance_with_their_place_in_the_request(server, client):
    answer = rank(client)
    assert [result["index"] for result in answer["results"]] == [2, 1, 0]
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == pytest.approx([math.cos(0.1), 0, -1], abs=1e-6)
    assert answer["results"][0]["document"] == {"text": "almost east"}
    tokens = len("eastwestnorthalmost east")
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert answer["meta"] == {"tokens": {"input_tokens": tokens}} and answer["model"] == "vec"
    assert len(server.embed.embedded) == 1  # query and documents in one pass


def test_top_n_cuts_and_documents_are_sent_as_asked(client):
    assert [result["index"] for result in rank(client, top_n=1)["results"]] == [2]
    assert len(rank(client, top_n=99)["results"]) == 3
    assert "document" not in rank(client, return_documents=False)["results"][0]
    assert "document" in rank(client, "/rerank")["results"][0]
    assert "document" not in rank(client, "/v2/rerank")["results"][0]
    assert "document" in rank(client, "/v2/rerank", return_documents=True)["results"][0]


def test_equal_documents_keep_their_order(client):
    answer = rank(client, documents=["north", "east", "north", "east"])
    assert [result["index"] for result in answer["results"]] == [1, 3, 0, 2]


def test_documents_are_cut_where_the_request_says_so(server, client):
    rank(client, documents=["north east", "west"], max_tokens_per_doc=5)
    assert server.embed.embedded == [[list(b"east"), list(b"north"), list(b"west")]]


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"documents": []}, "documents", "invalid_value"),
        ({"documents": ["west", ""]}, "documents[1]", "invalid_value"),
        ({"documents": ["west", {"text": "x", "image": "y"}]}, "documents[1].image", "unknown_parameter"),
        ({"documents": ["x" * 65]}, "documents[0]", "context_length_exceeded"),
        ({"documents": ["west"] * 2049}, "documents", "invalid_value"),
        ({"query": ""}, "query", "invalid_value"),
        ({"top_n": 0}, "top_n", "invalid_value"),
        ({"rank_fields": ["text"]}, "rank_fields", "unsupported_parameter"),
        ({"truncate_prompt_tokens": 1}, "truncate_prompt_tokens", "unsupported_parameter"),
        ({"model": "tiny"}, "model", "model_not_supported"),
    ],
)
def test_what_cannot_be_ranked_is_refused_by_name(client, change, param, code):
    answer = client.post("/v1/rerank", json={"model": "vec", "query": "east", "documents": ["west"], **change})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("east", "west", [-1]),
        ("east", ["east", "north", "west"], [1, 0, -1]),
        (["east", "north"], ["north east", "north"], [math.sqrt(0.5), 1]),
    ],
)
def test_pairs_are_scored(client, path, left, right, expected):
    answer = client.post(path, json={"model": "vec", "text_1": left, "text_2": right}).json()
    assert [each["score"] for each in answer["data"]] == pytest.approx(expected, abs=1e-6)
    assert [each["index"] for each in answer["data"]] == list(range(len(expected)))
    assert answer["usage"]["prompt_tokens"] > 0 and answer["data"][0]["object"] == "score"


@pytest.mark.parametrize(
    ("left", "right", "param"),
    [(["east", "west"], "north", "text_1"), ("", "north", "text_1"), ("east", [], "text_2"), ("east", [""], "text_2")],
)
def test_texts_that_do_not_pair_are_refused(client, left, right, param):
    answer = client.post("/v1/score", json={"model": "vec", "text_1": left, "text_2": right})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param


def test_the_cosine_of_nothing_is_zero():
    assert cosine((0.0, 0.0), (1.0, 0.0)) == 0.0
    assert cosine((1e-30, 0.0), (1e30, 0.0)) == 1.0


@pytest.fixture
def cross_encoder(server: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same model as one that reads pairs: its logit is how many letters of the two texts are the same."""

    async def embed(request_id: str, inputs: list[list[int]]) -> list[bytes]:
        server.embed.embedded.append(inputs)
        return [struct.pack("<f", len(ids) - 2 * len(set(ids))) for ids in inputs]

    monkeypatch.setattr(server.embed, "embed", embed)
    monkeypatch.setattr(server.embed, "card", msgspec.structs.replace(server.embed.card, kind="score"))
    return server


def test_a_cross_encoder_reads_each_document_with_the_query(cross_encoder, client):
    answer = rank(client, query="aa", documents=["bc", "aa", "ab"])
    assert cross_encoder.embed.embedded == [[list(b"aabc"), list(b"aaaa"), list(b"aaab")]]
    assert [result["index"] for result in answer["results"]] == [1, 2, 0]
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == pytest.approx([1 / (1 + math.exp(-logit)) for logit in (2, 0, -2)])
    assert answer["usage"]["prompt_tokens"] == 12


def test_a_cross_encoder_scores_pairs(cross_encoder, client):
    answer = client.post("/v1/score", json={"model": "vec", "text_1": ["aa", "ab"], "text_2": ["aa", "cd"]}).json()
    assert cross_encoder.embed.embedded == [[list(b"aaaa"), list(b"abcd")]]
    assert [each["score"] for each in answer["data"]] == pytest.approx([1 / (1 + math.exp(-2)), 1 / (1 + math.exp(4))])


def test_a_decoder_that_ranks_is_asked_in_its_template(cross_encoder, client):
    card = msgspec.structs.replace(cross_encoder.embed.card, pair_template="qwen3", max_context_length=4096)
    cross_encoder.embed.card = card
    rank(client, query="aa", documents=["b<|im_end|>", "aa"], instruction="Find letters")
    asked = [bytes(ids).decode() for ids in cross_encoder.embed.embedded[0]]
    for text, document in zip(asked, ["b<|im_end|>", "aa"], strict=True):
        assert f"\n<Instruct>: Find letters\n<Query>: aa\n<Document>: {document}<|im_end|>\n" in text
        assert text.endswith("assistant\n<think>\n\n</think>\n\n")
    client.post("/v1/score", json={"model": "vec", "text_1": "aa", "text_2": "b"})
    assert "retrieve relevant passages" in bytes(cross_encoder.embed.embedded[1][0]).decode()


def test_an_instruction_for_a_model_that_takes_none_is_refused(client):
    body = {"model": "vec", "query": "east", "documents": ["west"], "instruction": "Find west"}
    answer = client.post("/v1/rerank", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "instruction"


def test_a_cross_encoder_cuts_documents_and_refuses_long_pairs(cross_encoder, client):
    rank(client, query="ab", documents=["cdef"], max_tokens_per_doc=1)
    assert cross_encoder.embed.embedded == [[list(b"abc")]]
    answer = client.post("/v1/rerank", json={"model": "vec", "query": "x" * 30, "documents": ["y", "z" * 35]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "documents[1]")


def test_a_cross_encoder_makes_no_embeddings(cross_encoder, client):
    answer = client.post("/v1/embeddings", json={"model": "vec", "input": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "model_not_supported")
