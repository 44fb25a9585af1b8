"""A checkpoint's generation_config.json gives the sampling parameters that clients leave out, on every endpoint."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from asking import HELLO
from fake_replica import write_checkpoint
from kvarn.catalog.models import ServedModel
from kvarn.wire.sampling import SamplingParams

RECOMMENDED = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1}
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
ENDPOINTS = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "Hej"},
    "/v1/responses": {"input": "Hej"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 50},
}
Serve = Callable[..., AbstractContextManager[Any]]


@pytest.fixture
def serving(serve: Serve, tmp_path: Path) -> Callable[..., AbstractContextManager[Any]]:
    """Serve a checkpoint with this generation_config.json."""

    def start(content: object, setting: str = "auto") -> AbstractContextManager[Any]:
        directory = write_checkpoint(tmp_path / "model")
        (directory / "generation_config.json").write_text(json.dumps(content))

        def change(server: Any) -> None:
            config = server.served["tiny"].config.model_copy(update={"generation_config": setting})
            server.served["tiny"] = ServedModel("tiny", config, [server.chat], directory)

        return serve(change)

    return start


def sampling_of(server: Any, path: str, **fields: Any) -> SamplingParams:
    with server.client() as client:
        answer = client.post(path, json={"model": "tiny", **ENDPOINTS[path], **fields})
    assert answer.status_code == 200, answer.text
    params: SamplingParams = server.chat.submitted[-1].sampling
    return params


def shown(params: SamplingParams) -> dict[str, float]:
    return {name: getattr(params, name) for name in PLAIN}


def test_every_endpoint_takes_the_checkpoints_parameters_and_a_clients_own_win(serving):
    with serving(RECOMMENDED) as server:
        for path in ENDPOINTS:
            assert shown(sampling_of(server, path)) == RECOMMENDED
            own = sampling_of(server, path, temperature=1.0, top_p=1.0)
            assert shown(own) == {**RECOMMENDED, "temperature": 1.0, "top_p": 1.0}
        off = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
        assert shown(sampling_of(server, "/v1/chat/completions", **off)) == {**RECOMMENDED, **off}


def test_do_sample_false_is_greedy_unless_the_client_says_otherwise(serving):
    with serving({"do_sample": False, "temperature": 0.6}) as server:
        assert sampling_of(server, "/v1/chat/completions").temperature == 0
        assert sampling_of(server, "/v1/chat/completions", temperature=0.7).temperature == 0.7


def test_max_new_tokens_bounds_the_chat_answers_of_clients_that_give_no_bound(serving):
    with serving({"max_new_tokens": 7}) as server:
        assert sampling_of(server, "/v1/chat/completions").max_tokens == 7
        assert sampling_of(server, "/v1/responses").max_tokens == 7
        assert sampling_of(server, "/v1/chat/completions", max_tokens=9).max_tokens == 9
        assert sampling_of(server, "/v1/chat/completions", min_tokens=8).max_tokens == 8
        assert sampling_of(server, "/v1/completions").max_tokens == 16


def test_a_message_that_asks_for_more_than_the_context_gets_its_rest_not_max_new_tokens(serving):
    with serving({"max_new_tokens": 7}) as server:
        params = sampling_of(server, "/v1/messages", max_tokens=100_000)
        assert params.max_tokens == 512 - len(server.chat.submitted[-1].prompt_token_ids)


def test_a_response_and_the_list_of_models_show_the_defaults(serving):
    with serving(RECOMMENDED) as server, server.client() as client:
        response = client.post("/v1/responses", json={"model": "tiny", "input": "Hej"}).json()
        assert (response["temperature"], response["top_p"]) == (0.6, 0.95)
        models = {model["id"]: model for model in client.get("/v1/models").json()["data"]}
    assert models["tiny"]["default_sampling_params"] == {**RECOMMENDED, "max_tokens": None}
    assert models["vec"]["default_sampling_params"] is None


def test_the_log_shows_the_defaults(serving, caplog):
    with caplog.at_level(logging.INFO, "kvarn.catalog"), serving({"temperature": 0.6}):
        pass
    told = [entry.__dict__ for entry in caplog.records if entry.message == "sampling parameters by default"]
    assert [entry["temperature"] for entry in told if entry["model"] == "tiny"] == [0.6]


def test_none_leaves_openais_defaults_and_the_end_tokens(serving):
    with serving({**RECOMMENDED, "eos_token_id": [65, 66]}, "none") as server:
        params = sampling_of(server, "/v1/chat/completions")
        assert shown(params) == PLAIN
        assert {65, 66} <= set(params.stop_token_ids)


def test_a_folder_replaces_the_checkpoints_own(serving, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "generation_config.json").write_text('{"temperature": 0.2, "eos_token_id": 67}')
    with serving(RECOMMENDED, str(tmp_path / "mine")) as server:
        params = sampling_of(server, "/v1/chat/completions")
        assert shown(params) == {**PLAIN, "temperature": 0.2}
        assert 67 in params.stop_token_ids
