"""Settings of a model that change what its gateway does: aliases, seed, tokenizer, chat template."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from fake_replica import write_checkpoint
from kvarn.catalog.models import ServedModel

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def serve_with(serve):
    """A gateway whose model `tiny` has these settings."""

    def make(**settings: Any):
        def prepare(server) -> None:
            old = server.served["tiny"]
            config = old.config.model_copy(update=settings)
            server.served["tiny"] = ServedModel("tiny", config, [*old.replicas.values()], old.directory)

        return serve(prepare)

    return make


def seeds_of(client: httpx.Client, server, **fields: Any) -> list[int]:
    server.chat.submitted.clear()
    assert client.post("/v1/chat/completions", json=ASK | fields).status_code == 200
    body = {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 4} | fields
    assert client.post("/v1/completions", json=body).status_code == 200
    return [request.sampling.seed for request in server.chat.submitted]


def test_a_seed_makes_the_seeds_of_requests_without_one_repeatable(serve_with):
    seen = []
    for seed in (7, 7, 8, None):
        with serve_with(seed=seed) as server, server.client() as client:
            seen.append(seeds_of(client, server))
            assert seeds_of(client, server, seed=3)[0] == 3, "a client's own seed wins"
    assert seen[0] == seen[1] and len({*map(tuple, seen)}) == 3
    assert all(len({*seeds}) == 3 for seeds in seen), "each prompt has its own"


def test_each_gateway_process_has_a_stream_of_seeds_of_its_own(server):
    old = server.served["tiny"]
    config = old.config.model_copy(update={"seed": 7})
    models = [
        ServedModel("tiny", config, [*old.replicas.values()], old.directory, process=process)
        for process in (0, 1, 2, 1)
    ]
    seeds = [model.draw_seed() for model in models]
    assert len({*seeds}) == 3 and seeds[1] == seeds[3]


def test_the_system_fingerprint_changes_with_the_chat_template(serve_with, wait_for):
    seen = set()
    for settings in ({}, {}, {"chat_template": "<<{{ messages[0].content }}>>"}):
        with serve_with(**settings) as server, server.client() as client:
            seen.add(client.post("/v1/chat/completions", json=ASK).json()["system_fingerprint"])
    assert len(seen) == 2


def test_an_alias_is_another_name_of_the_same_model(serve_with):
    with serve_with(aliases=("gpt-4o",)) as server, server.client() as client:
        answer = client.post("/v1/chat/completions", json=ASK | {"model": "gpt-4o"})
        assert answer.status_code == 200 and answer.json()["model"] == "tiny"
        assert "gpt-4o" in client.get("/v1/models/gpt-4o").json()["aliases"]
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["tiny", "vec"]


def test_a_chat_template_of_the_configuration_replaces_the_checkpoints(serve_with):
    with serve_with(chat_template="<<{{ messages[0].content }}>>") as server, server.client() as client:
        tokens = client.post("/tokenize", json=ASK | {"return_token_strs": False}).json()["tokens"]
        assert client.post("/detokenize", json={"model": "tiny", "tokens": tokens}).json()["prompt"] == "<<hi>>"


def test_a_tokenizer_of_its_own_brings_its_template_and_not_the_end_tokens(serve_with, tmp_path):
    other = write_checkpoint(tmp_path / "other", "[{{ messages[0].content }}]")
    for name in ("config.json", "generation_config.json"):
        (other / name).unlink()
    settings = json.loads((other / "tokenizer_config.json").read_text())
    del settings["eos_token"]
    (other / "tokenizer_config.json").write_text(json.dumps(settings))
    with serve_with(tokenizer=str(other)) as server, server.client() as client:
        tokens = client.post("/tokenize", json=ASK).json()["tokens"]
        assert client.post("/detokenize", json={"model": "tiny", "tokens": tokens}).json()["prompt"] == "[hi]"
        answer = client.post("/v1/chat/completions", json=ASK).json()
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert server.chat.submitted[-1].sampling.stop_token_ids, "the checkpoint names the end tokens"
