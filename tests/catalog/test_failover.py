"""A request whose engine is lost goes on with another one; fakes stand for engines that draw the same tokens."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fake_replica import EMBED_CARD, GENERATE_CARD, FakeReplica, answer_text
from gateway_fixtures import GatewayServer, make_server, running
from kvarn.catalog.models import ServedModel
from kvarn.config.replica import FailoverConfig, RoutingConfig
from kvarn.replica.client.protocol import ReplicaState, RequestRefusedError
from kvarn.wire.messages import RefusalReason, Submit
from profiles import effort

CHAT = "/v1/chat/completions"


def long_answer(request: Submit, index: int) -> list[int]:
    draw = random.Random(index)
    return answer_text("".join(draw.choice("abcdefgh {}é") for _ in range(60 + 7 * index)))


@pytest.fixture
def fleet(checkpoint: Path) -> Iterator[GatewayServer]:
    """A server whose models have three replicas."""
    server = make_server(checkpoint, drain_timeout_s=1)
    failover = FailoverConfig(max_losses=3, max_wait_s=5)
    for name, first, card in (("tiny", server.chat, GENERATE_CARD), ("vec", server.embed, EMBED_CARD)):
        old = server.served[name]
        in_turn = RoutingConfig(policy="round_robin")
        config = old.config.model_copy(update={"failover": failover, "routing": in_turn})
        server.served[name] = ServedModel(name, config, [first, FakeReplica(card), FakeReplica(card)], old.directory)
        for replica in replicas(server, name):
            replica.answer = long_answer
            replica.step_s = 0.001
    with running(server):
        yield server


def replicas(server: GatewayServer, name: str = "tiny") -> list[Any]:
    return list(server.served[name].replicas.values())


def read(client: httpx.Client, path: str, body: dict[str, Any]) -> list[Any]:
    """Text, log-probabilities, reason of each choice, then the usage, of a streamed answer."""
    choices: dict[int, list[Any]] = {}
    usage = None
    with client.stream("POST", path, json=body | {"stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                text = choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
                found = choices.setdefault(choice["index"], ["", [], None])
                found[0] += text
                if choice.get("logprobs"):
                    found[1] += choice["logprobs"].get("content") or choice["logprobs"].get("token_logprobs") or ()
                found[2] = choice["finish_reason"] or found[2]
    return [*(found for _, found in sorted(choices.items())), usage]


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "n": 3}),
    "stop string": (CHAT, {"messages": [{"role": "user", "content": "x"}], "stop": ["}{", "zz"]}),
    "completion": ("/v1/completions", {"prompt": ["x", "yy"], "logprobs": 1, "n": 2, "max_tokens": 40, "seed": 4}),
    "echo": ("/v1/completions", {"prompt": "x", "echo": True, "logprobs": 0, "max_tokens": 30}),
}


@pytest.mark.parametrize("name", BODIES)
def test_the_client_hears_the_same_whatever_is_lost(fleet: GatewayServer, name: str) -> None:
    path, body = BODIES[name]
    body = {"model": "tiny", "stream_options": {"include_usage": True}, **body}
    with fleet.client() as client:
        wanted = read(client, path, body)
        assert len(wanted[0][0]) > 20
        draw = random.Random(name)
        for _ in range(effort(8, 60)):
            for replica in replicas(fleet):
                replica.lose_after = draw.choice([0, 1, 3, 10, 30, None])
            draw.choice(replicas(fleet)).lose_after = None
            assert read(client, path, body) == wanted


def test_it_is_billed_once(fleet: GatewayServer) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 30}
    with fleet.client() as client:
        whole = client.post("/v1/completions", json=body).json()["usage"]
        for replica, lost in zip(replicas(fleet), (5, 12, None), strict=True):
            replica.lose_after, replica.cached_tokens = lost, 1
        for _ in range(3):  # one begins with each replica
            again = client.post("/v1/completions", json=body).json()["usage"]
            assert (again["prompt_tokens"], again["completion_tokens"]) == (whole["prompt_tokens"], 30)
            assert again["prompt_tokens_details"]["cached_tokens"] == 1
        page = client.get("/metrics").text
    moved = [line for line in page.splitlines() if line.startswith('kvarn_failover_seconds_count{model="tiny"}')]
    assert float(moved[0].split()[1]) >= 1


def test_a_request_waits_for_a_replica_to_come_back(fleet: GatewayServer, wait_for: Callable[..., None]) -> None:
    first, *others = replicas(fleet)
    first.step_s = 0.02
    for other in others:
        other.state = ReplicaState.DOWN
    answers: list[Any] = []
    with fleet.client() as client:
        body = {"model": "tiny", "prompt": "x", "max_tokens": 30}
        asking = threading.Thread(target=lambda: answers.append(client.post("/v1/completions", json=body)))
        asking.start()
        wait_for(lambda: bool(first.running), "the request to run")
        first.lose_after = 3
        first.state = ReplicaState.DOWN
        wait_for(lambda: not first.running, "its loss")
        time.sleep(0.1)
        assert asking.is_alive()
        others[1].state = ReplicaState.READY
        fleet.loop.call_soon_threadsafe(others[1].on_changed)
        asking.join(60)
    assert answers[0].status_code == 200 and answers[0].json()["usage"]["completion_tokens"] == 30
    assert 3 <= len(others[1].submitted[0].resume_token_ids[0]) < 30


def test_where_none_comes_back_in_time_it_is_an_error(checkpoint: Path) -> None:
    server = make_server(checkpoint)
    old = server.served["tiny"]
    config = old.config.model_copy(update={"failover": FailoverConfig(max_wait_s=0.1)})
    server.served["tiny"] = ServedModel("tiny", config, [server.chat], old.directory)
    lost = server.chat
    with running(server), server.client() as client:

        def lose(request: Submit, index: int) -> list[int]:
            lost.state = ReplicaState.DOWN
            lost.lose_after = 0
            return answer_text("never")

        lost.answer = lose
        answer = client.post("/v1/completions", json={"model": "tiny", "prompt": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "replica_lost")


def test_a_request_that_ends_each_engine_is_given_up(fleet: GatewayServer) -> None:
    for replica in replicas(fleet):
        replica.lose_after = 0
    with fleet.client() as client:
        answer = client.post("/v1/completions", json={"model": "tiny", "prompt": "x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "replica_lost")
        assert sum(len(replica.submitted) for replica in replicas(fleet)) == 4  # the first, and `max_losses`


def test_an_engine_that_drains_is_passed_over_and_other_refusals_are_answers(fleet: GatewayServer) -> None:
    first, second, third = replicas(fleet)
    first.refusal = second.refusal = RequestRefusedError(RefusalReason.DRAINING, "it shuts down")
    body = {"model": "tiny", "prompt": "x", "max_tokens": 5}
    with fleet.client() as client:
        assert [client.post("/v1/completions", json=body).status_code for _ in range(3)] == [200] * 3
        assert len(third.submitted) == 3
        third.refusal = RequestRefusedError(RefusalReason.INVALID, "it is no good")
        first.refusal = second.refusal = third.refusal
        assert client.post("/v1/completions", json=body).status_code == 400
        assert len(third.submitted) <= 4, "what cannot be answered is not tried again"


def test_embeddings_are_made_by_another_replica(fleet: GatewayServer) -> None:
    first, second, third = replicas(fleet, "vec")
    body = {"model": "vec", "input": "x"}
    with fleet.client() as client:
        wanted = client.post("/v1/embeddings", json=body).json()["data"]
        first.refusal = second.refusal = RequestRefusedError(RefusalReason.DRAINING, "it shuts down")
        for _ in range(3):
            assert client.post("/v1/embeddings", json=body).json()["data"] == wanted
    assert len(third.embedded) >= 3
