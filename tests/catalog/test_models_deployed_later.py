"""A model that is deployed while the server runs: its aliases, fallbacks, breaker and load shedding hold at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fake_replica import GENERATE_CARD, FakeReplica
from gateway_fixtures import GatewayServer, make_server, running
from kvarn.catalog.models import ServedModel
from kvarn.config.model import ModelConfig
from kvarn.costs.step_times import StepTimes
from kvarn.sandbox.process import SandboxLimits
from kvarn.wire.messages import EngineStats

CHAT = "/v1/chat/completions"
TIMES = StepTimes(fixed_s=0.01, prefill_token_s=1e-4, prefill_pair_s=0, decode_row_s=1e-3, decode_token_s=0)
SWAMPED = EngineStats(step_times=TIMES, step_s=0.01, running=1, prefill_tokens=10**6)
SETTINGS = {"path": "late", "failover": {"max_losses": 0}}


class Running:
    """A server, to which models are added as `LiveModels` does."""

    def __init__(self, server: GatewayServer, http: httpx.Client) -> None:
        self._server = server
        self._http = http
        self._directory = server.served["tiny"].directory

    def deploy(self, **settings: object) -> FakeReplica:
        config = ModelConfig.model_validate({"name": "late", **SETTINGS, **settings})
        replica = FakeReplica(GENERATE_CARD)
        model = ServedModel("late", config, [replica], self._directory)
        self._server.do(model.load_text(None, SandboxLimits(10, 2**30)))
        self._server.gateway.metrics.add_model("late", self._server.config.slo_of(config))
        self._server.served["late"] = model
        return replica

    def ask(self, model: str, **fields: object) -> httpx.Response:
        messages = [{"role": "user", "content": "x"}]
        return self._http.post(CHAT, json={"model": model, "messages": messages, "max_tokens": 4, **fields})


@pytest.fixture
def served(checkpoint: Path) -> Iterator[Running]:
    server = make_server(checkpoint)
    with running(server), server.client() as client:
        yield Running(server, client)


def test_it_is_called_by_its_alias_and_refuses_what_it_would_answer_late(served: Running) -> None:
    assert served.ask("newest").status_code == 404
    replica = served.deploy(aliases=["newest"], load_shedding=True)
    assert served.ask("newest").json()["model"] == "late"
    replica.stats = SWAMPED
    refused = served.ask("newest")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    assert len(replica.submitted) == 1


def test_its_fallback_answers_and_its_breaker_opens_by_the_rules_of_the_version_that_serves(served: Running) -> None:
    rules = {"open_s": 600, "max_open_s": 600}
    fallback = [{"model": "tiny"}]
    replica = served.deploy(fallback=fallback, breaker={"min_requests": 3, **rules})
    replica.lose_after = 0
    assert [served.ask("late").json()["model"] for _ in range(5)] == ["tiny"] * 5
    assert len(replica.submitted) == 3, "its breaker is open"

    replica = served.deploy(fallback=fallback, breaker={"min_requests": 1, **rules})
    replica.lose_after = 0
    assert [served.ask("late").json()["model"] for _ in range(3)] == ["tiny"] * 3
    assert len(replica.submitted) == 1
