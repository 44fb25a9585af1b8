"""Replica choice in the gateway: who is asked to tell, and where requests go by what was told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fake_replica import GENERATE_CARD, FakeReplica
from gateway_fixtures import make_server, running
from kvarn.catalog.models import ServedModel
from kvarn.catalog.replicas import ReplicaSet
from kvarn.config.replica import RoutingConfig
from kvarn.replica.client.protocol import ReplicaState
from kvarn.routing.candidate import RouteRequest
from kvarn.wire.messages import AdapterInfo, EngineStats

TEXT = "A router knows what its replicas have cached. " * 4


@dataclass
class Fleet:
    client: Any
    replicas: list[FakeReplica]
    served: ServedModel

    def ask(self, prompt: str, **fields: Any) -> int:
        """The number of the replica that answered."""
        before = [len(each.submitted) for each in self.replicas]
        answer = self.client.post(
            "/v1/completions", json={"model": "tiny", "prompt": prompt, "max_tokens": 2, **fields}
        )
        assert answer.status_code == 200, answer.text
        (asked,) = [i for i, each in enumerate(self.replicas) if len(each.submitted) > before[i]]
        return asked

    def tell(self, number: int, prompt: str, cache_salt: str = "") -> None:
        """A replica says that it has cached the blocks of a prompt, as an engine would name them."""
        watcher = self.replicas[number].watcher
        assert watcher is not None
        submitted = [each for replica in self.replicas for each in replica.submitted]
        tenant = submitted[-1].tenant
        watcher.replace(self.served.replicas.names(list(prompt.encode()), tenant, f"/{cache_salt}"))


@pytest.fixture
def make_fleet(checkpoint: Path) -> Iterator[Callable[..., Fleet]]:
    with ExitStack() as stack:

        def make(**routing: Any) -> Fleet:
            server = make_server(checkpoint, drain_timeout_s=1)
            old = server.served["tiny"]
            config = old.config.model_copy(update={"routing": RoutingConfig(**routing)})
            replicas = [server.chat, FakeReplica(GENERATE_CARD), FakeReplica(GENERATE_CARD)]
            served = server.served["tiny"] = ServedModel("tiny", config, replicas, old.directory)
            stack.enter_context(running(server))
            return Fleet(stack.enter_context(server.client()), replicas, served)

        yield make


def test_a_prompt_goes_to_the_replica_that_has_told_of_its_beginning(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet()
    fleet.ask("x")
    for number in (2, 0, 1):
        text = f"{number} {TEXT}"
        fleet.tell(number, text)
        assert [fleet.ask(text + "And now?") for _ in range(5)] == [number] * 5
        salted = {fleet.ask(text + "And now?", cache_salt=f"{salt}") for salt in range(30)}
        assert len(salted) > 1, "a block of another salt counts as cached"
    page = fleet.client.get("/metrics").text
    assert page.count("kvarn_routing_known_blocks{") == 3


def test_a_replica_that_is_down_or_busy_is_left_alone(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet()
    fleet.ask("x")
    fleet.tell(1, TEXT)
    assert fleet.ask(TEXT) == 1
    fleet.replicas[1].state = ReplicaState.DRAINING
    assert fleet.ask(TEXT) != 1
    fleet.replicas[1].state = ReplicaState.READY
    assert fleet.ask(TEXT) == 1
    fleet.replicas[1].stats = EngineStats(running=8, waiting=50, prefill_tokens=50_000)
    assert fleet.ask(TEXT) != 1


def test_requests_for_an_adapter_go_where_it_is(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet(policy="round_robin")
    for replica in (fleet.replicas[0], fleet.replicas[2]):
        replica.adapters["lora"] = AdapterInfo(name="lora", path="/lora", digest="d")
    assert {fleet.ask("x", model="lora") for _ in range(6)} == {0, 2}
    assert {fleet.ask("x") for _ in range(6)} == {0, 1, 2}


def test_engines_are_asked_to_tell_only_while_there_are_several_and_somebody_listens() -> None:
    def fake() -> FakeReplica:
        return FakeReplica(GENERATE_CARD)

    first, second, third = fake(), fake(), fake()
    replicas = ReplicaSet({"a": first}, routing=RoutingConfig())
    assert first.watcher is None and not replicas.reads_names
    replicas.add("b", second)
    assert first.watcher is not None and second.watcher is not None and replicas.reads_names
    replicas.add("c", third)
    assert third.watcher is not None
    replicas.remove("b")
    assert second.watcher is None and first.watcher is not None
    replicas.remove("c")
    assert first.watcher is None and not replicas.reads_names
    choice = replicas.choose(RouteRequest(1))
    assert choice is not None and choice.replica == "a"
    assert replicas.choose(RouteRequest(1, excluded={"a"})) is None

    by_load = ReplicaSet({"a": first, "b": second}, routing=RoutingConfig(policy="least_load"))
    assert first.watcher is None and not by_load.reads_names


def test_a_burst_uses_all_replicas_while_statistics_stand_still(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet()
    prompts = [f"{number} {TEXT}" for number in range(12)]
    route = [
        RouteRequest(len(prompt), fleet.served.replicas.names(list(prompt.encode()), "t", "/")) for prompt in prompts
    ]
    for replica in fleet.replicas:
        assert replica.watcher is not None
        replica.watcher.replace(b"")
    chosen = [fleet.served.replicas.choose(each) for each in route]
    counts = {name: sum(each is not None and each.replica == name for each in chosen) for name in fleet.served.replicas}
    assert min(counts.values()) >= 2 and max(counts.values()) <= 6
