"""Which version of a deployment answers while one is rolled out, whatever replicas are ready."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_replica import GENERATE_CARD, FakeReplica, answer_text
from foreign_server import foreign_gateway
from kvarn.catalog.models import ServedModel
from kvarn.replica.client.protocol import ReplicaState
from kvarn.wire.messages import AdapterInfo
from profiles import thorough

ROLLOUT = {"golden_prompts": 0, "shadow_share": 0, "step_min_s": 0, "check_interval_s": 0.05}


class Deployment:
    """The deployment `chat`, whose versions 0 and 1 have one replica each. No fleet starts or ends any."""

    def __init__(self, gateway: Any, http: Any, checkpoint: Path) -> None:
        self.gateway = gateway
        self.http = http
        first = gateway.served["chat"]
        second = ServedModel("chat", first.config, [FakeReplica(GENERATE_CARD)], checkpoint, version=1)
        second.text = first.text
        second.held_back = True  # the fleet says so before its first replica
        first.versions = second.versions = [first, second]
        self.replicas = [next(iter(version.replicas.values())) for version in first.versions]
        for number, replica in enumerate(self.replicas):
            replica.answer = lambda request, index, number=number: answer_text(f"from {number}")

    def roll_out(self, **settings: Any) -> Any:
        body = {"model": "chat", "settings": {"path": "other"}, "rollout": ROLLOUT | settings}
        made: Any = self.http.post("/v1/organization/deployments", json=body).raise_for_status().json()
        return made

    def command(self, action: str) -> None:
        self.http.post("/v1/rollouts/chat", json={"action": action}).raise_for_status()

    @property
    def rollout(self) -> Any:
        return self.http.get("/v1/rollouts/chat").json()

    def ask(self, model: str = "chat") -> tuple[int, str]:
        """The status, and which version answered."""
        answer = self.http.post("/v1/completions", json={"model": model, "prompt": "x", "max_tokens": 9})
        return answer.status_code, answer.json()["choices"][0]["text"] if answer.status_code == 200 else ""

    def set_ready(self, *ready: bool) -> None:
        for replica, each in zip(self.replicas, ready, strict=True):
            replica.state = ReplicaState.READY if each else ReplicaState.DOWN


@pytest.fixture
def deployment(checkpoint: Path, tmp_path: Path) -> Iterator[Deployment]:
    models = {"models": [{"name": "chat", "path": "chat"}]}
    with foreign_gateway(models, checkpoint, tmp_path) as gateway, gateway.client() as http:
        yield Deployment(gateway, http, checkpoint)


@pytest.mark.parametrize(
    ("phase", "settings", "command", "answers"),
    [
        thorough("shadow", {"shadow_share": 1, "shadow_requests": 1000}, None, {"from 0"}),
        ("canary", {"steps": [0.5, 1.0], "step_requests": 10_000}, None, {"from 0", "from 1"}),
        thorough("canary", {"steps": [1.0], "step_requests": 10_000}, None, {"from 1"}),
        ("rolled_back", {"steps": [0.5, 1.0], "step_requests": 10_000}, "rollback", {"from 0"}),
        thorough("promoted", {"steps": [0.5, 1.0], "step_requests": 10_000}, "promote", {"from 0", "from 1"}),
    ],
)
def test_a_request_goes_to_the_version_of_its_share_and_never_to_one_without_a_ready_replica(
    deployment: Deployment, wait_for: Any, phase: str, settings: Any, command: str | None, answers: set[str]
) -> None:
    assert deployment.roll_out(**settings)["version"] == 0
    wait_for(lambda: deployment.rollout["phase"] == ("shadow" if phase == "shadow" else "canary"), "the first step")
    if command is not None:
        deployment.command(command)  # holds for the very next request
    assert {deployment.ask() for _ in range(40)} == {(200, each) for each in answers}
    for first, second in itertools.product((True, False), repeat=2):
        deployment.set_ready(first, second)
        possible = {f"from {number}" for number, ready in enumerate((first, second)) if ready}
        expected = {(200, each) for each in (answers & possible) or possible} or {(503, "")}
        assert {deployment.ask() for _ in range(20)} <= expected
    assert deployment.rollout["phase"] == phase


def test_an_adapter_that_both_versions_have_is_shared_and_one_of_the_new_version_waits(
    deployment: Deployment, wait_for: Any
) -> None:
    law, news = (AdapterInfo(name=name, path="/", digest=name) for name in ("law", "news"))
    deployment.replicas[0].adapters = {"law": law}
    deployment.replicas[1].adapters = {"law": law, "news": news}
    deployment.roll_out(steps=[0.5, 1.0], step_requests=10_000)
    wait_for(lambda: deployment.rollout["phase"] == "canary", "the first step")
    assert {deployment.ask("law") for _ in range(40)} == {(200, "from 0"), (200, "from 1")}
    assert {deployment.ask("chat:law") for _ in range(40)} == {(200, "from 0"), (200, "from 1")}
    assert deployment.rollout["answered"] > 20
    assert deployment.ask("news") == (404, "")
    assert deployment.ask("chat@1:news") == (200, "from 1")
    listed = [each["id"] for each in deployment.http.get("/v1/models").json()["data"]]
    assert sorted(listed) == ["chat", "law"]


def test_an_answer_with_other_tokens_rolls_back_an_upgrade_that_must_be_identical(
    deployment: Deployment, wait_for: Any
) -> None:
    deployment.roll_out(identical=True, shadow_share=1, shadow_requests=1000)
    wait_for(lambda: deployment.ask() and deployment.rollout["phase"] == "rolled_back", "the copy to be compared")
    assert deployment.rollout["failure"].startswith("tokens:")
    answers = deployment.rollout["compared"][-1]
    assert (answers["kind"], answers["equal"]) == ("shadowed", False)
    assert len(answers["stable"]["record_id"]) == 32 and answers["candidate"]["record_id"] == ""
    assert all(entry["share"] == 0 for entry in deployment.rollout["log"])


def test_during_a_rollout_a_model_falls_back_as_configured(checkpoint: Path, tmp_path: Path) -> None:
    models = [{"name": "chat", "path": "chat", "fallback": [{"model": "small"}]}, {"name": "small", "path": "small"}]
    with foreign_gateway({"models": models}, checkpoint, tmp_path) as gateway, gateway.client() as http:
        deployment = Deployment(gateway, http, checkpoint)
        (small,) = gateway.served["small"].replicas.values()
        small.answer = lambda request, index: answer_text("instead")
        deployment.roll_out(step_min_s=3600)
        deployment.set_ready(False, False)
        assert deployment.ask() == (200, "instead")


def test_a_version_is_asked_for_by_its_name(deployment: Deployment) -> None:
    assert [deployment.ask(f"chat@{number}") for number in (0, 1)] == [(200, "from 0"), (200, "from 1")]
    assert deployment.ask("chat@2") == (404, "")
    deployment.set_ready(True, False)
    assert deployment.ask("chat@1") == (503, "")


def test_an_administrator_pauses_resumes_and_rolls_back(deployment: Deployment, wait_for: Any) -> None:
    assert deployment.http.get("/v1/rollouts/chat").status_code == 404
    deployment.roll_out(steps=[0.5, 1.0], step_requests=10_000)
    wait_for(lambda: deployment.rollout["share"] == 0.5, "the first step")
    deployment.command("pause")
    assert deployment.rollout["paused"]
    deployment.command("resume")
    assert not deployment.rollout["paused"]
    deployment.command("rollback")
    assert (deployment.rollout["share"], deployment.rollout["phase"]) == (0.0, "rolled_back")
    late = deployment.http.post("/v1/rollouts/chat", json={"action": "promote"})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "rollout_ended")


def test_a_rollout_between_served_models_is_refused_with_what_to_use_instead(deployment: Deployment) -> None:
    refused = deployment.http.post("/v1/rollouts", json={"model": "chat", "candidate": "other"})
    assert refused.status_code == 410 and "kvarn deploy" in refused.json()["error"]["message"]


def test_wrong_settings_of_a_rollout_are_refused(deployment: Deployment) -> None:
    body = {"model": "chat", "settings": {"path": "other"}, "rollout": {"steps": [0.5]}}
    refused = deployment.http.post("/v1/organization/deployments", json=body)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "rollout"


@pytest.mark.thorough
def test_the_next_step_waits_for_the_replicas_that_it_needs(deployment: Deployment, wait_for: Any) -> None:
    first = deployment.gateway.served["chat"]
    for number in range(3):
        first.replicas.add(f"more {number}", FakeReplica(GENERATE_CARD))
    deployment.roll_out(steps=[0.25, 1.0], step_requests=1)
    wait_for(lambda: deployment.rollout["share"] == 0.25, "the first step")
    wait_for(lambda: deployment.ask() and deployment.rollout["answered"] > 3, "enough requests")
    assert deployment.rollout["waits_for"].startswith("3 more ready replicas of chat@1")
    assert deployment.rollout["share"] == 0.25
    for number in range(3):
        first.versions[1].replicas.add(f"more {number} of 1", FakeReplica(GENERATE_CARD))
    wait_for(lambda: deployment.ask() and deployment.rollout["phase"] == "promoted", "the end")
