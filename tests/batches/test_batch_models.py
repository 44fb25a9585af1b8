"""Batches that ask for several models, through HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from asking import metric
from batch_jobs import await_end, chat_line, outputs, send
from fake_replica import GENERATE_CARD, FakeReplica, answer_text
from kvarn.catalog.models import ServedModel
from kvarn.config.model import ModelConfig
from kvarn.config.platform import AdmissionConfig, BatchesConfig, SafetyConfig
from kvarn.costs.step_times import StepTimes
from kvarn.replica.client.protocol import ReplicaState, RequestRefusedError
from kvarn.wire.messages import EngineStats, RefusalReason
from profiles import thorough

CROWDED = EngineStats(running=4, waiting=2, waiting_by_priority={0: 2})
"""No line is admitted: a better request waits in the engine."""
TIMES = StepTimes(fixed_s=0.01, prefill_token_s=1e-4, prefill_pair_s=0, decode_row_s=1e-3, decode_token_s=0)
SWAMPED = EngineStats(step_times=TIMES, step_s=0.01, running=1, prefill_tokens=200_000)
"""Lines wait to be admitted until they have waited too long."""


@pytest.fixture
def second() -> FakeReplica:
    """The engine of another chat model."""
    return FakeReplica(GENERATE_CARD)


@pytest.fixture
def safety() -> SafetyConfig:
    """Who moderates."""
    return SafetyConfig()


@pytest.fixture
def runner(serve_stored: Any, second: FakeReplica, safety: SafetyConfig) -> Iterator[Any]:
    """A gateway of its own on each database, with two chat models; one may answer for the other."""

    def prepare(server: Any) -> None:
        model = ModelConfig(name="second", path="second")
        tiny, *others = server.config.models
        tiny = server.served["tiny"].config = tiny.model_copy(update={"fallback": "second"})
        server.configure(models=[tiny, *others, model])
        server.served["second"] = ServedModel("second", model, [second], server.served["tiny"].directory)

    config = {
        "admission": AdmissionConfig(load_shedding=True, max_queue_s=1.0),
        "safety": safety,
        "batches": BatchesConfig(poll_s=0.05, max_in_flight=8),
    }
    with serve_stored(prepare, config=config) as server:
        yield server


def queued_lines(client: httpx.Client, model: str) -> float:
    return metric(client, "kvarn_admission_queue_length", model=model, tier="batch")


def completed(client: httpx.Client, batch: dict[str, Any]) -> int:
    count: int = client.get(f"/v1/batches/{batch['id']}").json()["request_counts"]["completed"]
    return count


@pytest.mark.parametrize("how", ["busy", thorough("sheds"), "starts"])
def test_a_model_that_is_not_to_be_had_delays_only_its_own_lines(runner, second, wait_for, how):
    if how == "busy":
        runner.chat.stats = CROWDED
    elif how == "sheds":
        runner.chat.refusal = RequestRefusedError(RefusalReason.QUEUE_FULL, "full", retry_after_s=1.0)
    else:
        runner.chat.state = ReplicaState.STARTING
    with runner.client() as client:
        lines = [chat_line(i) for i in range(60)] + [chat_line(60 + i, model="second") for i in range(20)]
        batch = send(client, lines)
        wait_for(lambda: completed(client, batch) == 20, "the other model's lines to be answered", seconds=20)
        assert len(second.submitted) == 20 and runner.chat.yields == 0
        runner.chat.stats, runner.chat.refusal, runner.chat.state = EngineStats(), None, ReplicaState.READY
        await_end(client, batch, wait_for)
        assert batch["request_counts"] == {"total": 80, "completed": 80, "failed": 0} and "model" not in batch
        assert set(outputs(client, batch)) == {f"r{i}" for i in range(80)}
        assert len(second.submitted) == 20, "no line was run twice"


def test_a_model_deployed_after_the_start_delays_only_its_own_lines(runner, second, wait_for):
    later = FakeReplica(GENERATE_CARD)
    later.state = ReplicaState.STARTING
    directory = runner.served["tiny"].directory
    runner.served["third"] = ServedModel("third", ModelConfig(name="third", path="third"), [later], directory)
    with runner.client() as client:
        lines = [chat_line(i, model="third") for i in range(20)] + [chat_line(20 + i, model="nobody") for i in range(3)]
        batch = send(client, lines)
        url = f"/v1/batches/{batch['id']}"
        wait_for(lambda: client.get(url).json()["request_counts"]["failed"] == 3, "the lines for no model to fail")
        assert completed(client, batch) == 0
        client.post(f"{url}/cancel")
        await_end(client, batch, wait_for, "cancelled")


@pytest.mark.thorough
def test_a_cancelled_batch_of_several_models_is_over_at_once(runner, second, wait_for):
    runner.chat.stats = CROWDED
    with runner.client() as client:
        batch = send(client, [chat_line(0), chat_line(1, model="second"), chat_line(2)])
        wait_for(lambda: completed(client, batch) == 1, "the other model's line to be answered")
        client.post(f"/v1/batches/{batch['id']}/cancel")
        await_end(client, batch, wait_for, "cancelled")
        found = outputs(client, batch)
        assert {name: line["error"] and line["error"]["code"] for name, line in found.items()} == {
            "r0": "batch_cancelled",
            "r1": None,
            "r2": "batch_cancelled",
        }


@pytest.mark.parametrize("name", ["", "a\0b", thorough("x" * 300)])
def test_a_name_that_no_model_can_have_is_an_error_of_its_line(runner, wait_for, name):
    with runner.client() as client:
        batch = await_end(client, send(client, [chat_line(0, model=name)]), wait_for)
        assert outputs(client, batch)["r0"]["response"]["status_code"] == 404
        assert batch["request_counts"]["failed"] == 1 and "model" not in batch


@pytest.mark.thorough
def test_no_other_model_answers_a_line(runner, second, wait_for):
    """A batch asks for one model by its name; `fallback` is for what is late, which no line ever is."""
    runner.chat.stats, second.stats = SWAMPED, CROWDED
    with runner.client() as client:
        batch = send(client, [chat_line(i) for i in range(4)])
        retried = 'kvarn_batch_lines_total{outcome="retried"}'
        wait_for(lambda: retried in client.get("/metrics").text, "a line to be turned away", seconds=20)
        assert not second.submitted and completed(client, batch) == 0
        runner.chat.stats = EngineStats()
        await_end(client, batch, wait_for)
        assert {line["response"]["body"]["model"] for line in outputs(client, batch).values()} == {"tiny"}


@pytest.mark.parametrize("safety", [SafetyConfig(model="second")])
@pytest.mark.parametrize("named", [{}, thorough({"model": None}), thorough({"model": "omni-moderation-latest"})])
def test_moderations_wait_for_the_model_that_makes_them(runner, second, wait_for, named):
    second.answer, second.stats = (lambda request, index: answer_text("safe")), CROWDED
    url = "/v1/moderations"
    lines = [{"custom_id": f"m{i}", "method": "POST", "url": url, "body": {"input": "x", **named}} for i in range(4)]
    with runner.client() as client:
        batch = send(client, lines, url)
        wait_for(lambda: queued_lines(client, "second") > 0, "a line to wait for the model")
        assert not second.submitted
        second.stats = EngineStats()
        await_end(client, batch, wait_for)
        assert batch["request_counts"]["completed"] == len(second.submitted) == 4 and batch["model"] == "second"
