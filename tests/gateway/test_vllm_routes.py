"""Routes that vLLM's clients ask for: render, pooling, classify, tokenizer and server information, sleep."""

from __future__ import annotations

from typing import Any

import pytest

from kvarn.store.owner import Role

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hej"}]}


def test_a_chat_is_rendered_as_it_would_be_answered(server, client):
    asked = {**CHAT, "temperature": 0.5, "max_tokens": 7, "seed": 3, "stop_token_ids": [5], "priority": 2}
    rendered = client.post("/v1/chat/completions/render", json=asked).json()
    assert client.post("/v1/chat/completions", json=asked).status_code == 200
    (submit,) = server.chat.submitted
    assert rendered["token_ids"] == submit.prompt_token_ids
    sampling = rendered["sampling_params"]
    assert (sampling["temperature"], sampling["max_tokens"], sampling["seed"]) == (0.5, 7, 3)
    assert sampling["stop_token_ids"] == submit.sampling.stop_token_ids
    assert (rendered["model"], rendered["stream"], rendered["priority"]) == ("tiny", False, 2)


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [({"model": "none"}, 404, "model"), ({"model": "vec"}, 400, "model"), ({"max_tokens": 9999}, 400, "max_tokens")],
)
def test_what_would_be_refused_is_not_rendered(client, changes, status, param):
    answer = client.post("/v1/chat/completions/render", json={**CHAT, **changes})
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_pooling_gives_the_vectors_of_embeddings(client, encoding):
    asked = {"model": "vec", "input": ["a", "bc"], "encoding_format": encoding}
    embedded = client.post("/v1/embeddings", json=asked).json()
    pooled = client.post("/pooling", json={**asked, "task": "embed", "normalize": True}).json()
    assert pooled["id"].startswith("pool-") and pooled["usage"] == embedded["usage"]
    assert [each["data"] for each in pooled["data"]] == [each["embedding"] for each in embedded["data"]]
    assert {each["object"] for each in pooled["data"]} == {"pooling"}


@pytest.mark.parametrize("changes", [{"task": "token_embed"}, {"normalize": False}, {"messages": CHAT["messages"]}])
def test_pooling_refuses_by_name_what_these_models_do_not_do(client, changes):
    answer = client.post("/pooling", json={"model": "vec", "input": "a", **changes})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == next(iter(changes))


def test_no_model_classifies(client):
    answer = client.post("/classify", json={"model": "vec", "input": "a"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "model_not_supported", "model")
    assert "/v1/score" in error["message"]
    assert client.post("/classify", json={"model": "none", "input": "a"}).status_code == 404


def test_the_tokenizers_settings_are_shown(client):
    shown = client.get("/tokenizer_info", params={"model": "tiny"}).json()
    assert shown["bos_token"] == "<bos>" and "<|assistant|>" in shown["chat_template"]
    assert client.get("/tokenizer_info").json() == shown
    assert client.get("/tokenizer_info", params={"model": "none"}).status_code == 404


def test_an_empty_prompt_has_tokens_as_any_other(client):
    bare = client.post("/tokenize", json={"prompt": "", "add_special_tokens": False}).json()
    assert (bare["count"], bare["tokens"]) == (0, [])
    assert client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}
    neither = client.post("/tokenize", json={})
    assert (neither.status_code, neither.json()["error"]["param"]) == (400, "prompt")


def test_a_server_without_models_says_so(serve):
    with serve(lambda server: server.served.clear(), wait_ready=False) as server, server.client() as client:
        for answer in (client.get("/tokenizer_info"), client.post("/tokenize", json={"prompt": "a"})):
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (404, "model_not_found") and "'models'" in error["message"]


def test_the_servers_settings_are_shown(client):
    shown = client.get("/server_info").json()
    assert shown["models"]["tiny"]["settings"]["path"] == "tiny"
    assert shown["models"]["vec"]["card"]["kind"] == "embed"


def test_models_are_put_to_sleep_and_woken(serve):
    with serve() as server, server.client() as client:

        def wanted() -> dict[str, int]:
            return {
                each["model"]: each["replicas"] for each in client.get("/v1/organization/deployments").json()["data"]
            }

        assert client.post("/sleep?level=1&model=tiny").status_code == 200
        assert wanted() == {"tiny": 0, "vec": 1}
        asleep = client.post("/sleep?level=2&mode=abort")
        assert asleep.status_code == 200 and "finished first" in asleep.headers["x-kvarn-warning"]
        assert wanted() == {"tiny": 0, "vec": 0}
        assert client.get("/is_sleeping").json() == {"is_sleeping": False}  # these replicas stay
        assert client.post("/wake_up?tags=weights").status_code == 200
        assert wanted() == {"tiny": 1, "vec": 1}
        assert client.post("/sleep?model=none").json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/sleep"), ("POST", "/wake_up"), ("GET", "/is_sleeping"), ("GET", "/server_info")]
)
def test_engines_are_for_platform_administrators(server, method, path):
    for role in (Role.MEMBER, Role.ADMIN):
        with server.add_tenant(f"engines-{role}-{path[1:]}", role=role) as client:
            answer = client.request(method, path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_permissions")
