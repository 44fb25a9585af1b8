"""Requests that wait to be admitted: one that leaves leaves nothing behind; a name may pass to another replica."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from fake_replica import GENERATE_CARD, FakeReplica
from kvarn.answers.record import RequestRecord
from kvarn.answers.stages.admission import AdmissionStage
from kvarn.answers.stages.replica_admission import ReplicaAdmission
from kvarn.answers.turn import Turn
from kvarn.catalog.models import ServedModel
from kvarn.catalog.replicas import ReplicaSet
from kvarn.config.platform import AdmissionConfig
from kvarn.costs.step_times import StepTimes
from kvarn.observe.admission import AdmissionMetrics
from kvarn.routing.candidate import RouteRequest
from kvarn.wire.messages import EngineStats
from kvarn.wire.openai.errors import ApiError

TIMES = StepTimes(fixed_s=0.01, prefill_token_s=1e-4, prefill_pair_s=0, decode_row_s=1e-3, decode_token_s=0)
IDLE = EngineStats(step_times=TIMES, step_s=0.01)
FULL = EngineStats(step_times=TIMES, step_s=0.01, running=300, decode_rows=300)


class Harness:
    """Requests that wait for a served model."""

    def __init__(self, server: Any) -> None:
        self.engine = server.chat
        config = server.config.model_copy(update={"admission": AdmissionConfig(load_shedding=True)})
        model = server.served["tiny"]
        self.admission = ReplicaAdmission(config, model, next(iter(model.replicas)), AdmissionMetrics())
        self.queue = self.admission.controller.queue

    def ask(self, client_left: Callable[[], Awaitable[None]] | None = None) -> asyncio.Task[Any]:
        work = Turn(record=RequestRecord("r"), model="tiny", prompt_tokens=10, max_output_tokens=20)
        self.demand = self.admission.demand_of(work)
        return asyncio.create_task(self.admission.enter(self.demand, client_left))

    @property
    def in_service(self) -> int:
        return self.demand.account.in_service

    def decide(self) -> None:
        """Decide on all that wait, before anybody could hear of it."""
        assert len(self.queue) == 1 and self.in_service == 0
        self.engine.stats = IDLE
        self.admission._poll()
        assert len(self.queue) == 0 and self.in_service == 1


@pytest.fixture
def harness(server: Any) -> Harness:
    server.chat.stats = FULL
    return Harness(server)


@pytest.mark.parametrize("cancelled_first", [False, True])
async def test_cancelled_at_the_moment_of_its_decision_a_request_holds_no_place(harness, cancelled_first):
    asked = harness.ask()
    await asyncio.sleep(0)
    if cancelled_first:
        asked.cancel()
    harness.decide()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert harness.in_service == 0
    await harness.admission.close()


async def test_cancelled_while_it_waits_a_request_leaves_the_queue(harness):
    asked = harness.ask()
    await asyncio.sleep(0)
    assert len(harness.queue) == 1
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert (len(harness.queue), harness.in_service) == (0, 0)
    await harness.admission.close()


async def test_a_client_that_left_before_its_decision_leaves_the_queue(harness):
    left = asyncio.Event()

    async def client_left() -> None:
        await left.wait()

    asked = harness.ask(client_left)
    await asyncio.sleep(0)
    left.set()
    with pytest.raises(ClientDisconnect):
        await asked
    assert (len(harness.queue), harness.in_service) == (0, 0)
    await harness.admission.close()


CROWDED = EngineStats(step_times=TIMES, step_s=0.01, running=300, waiting=300, decode_rows=300, prefill_tokens=10**9)


@pytest.fixture
def served(server: Any) -> dict[str, ServedModel]:
    """A model of this test's own: its replicas come and go."""
    model = server.served["tiny"]
    return {"tiny": ServedModel("tiny", model.config, [FakeReplica(GENERATE_CARD)], model.directory)}


@pytest.fixture
def stage(server: Any, served: dict[str, ServedModel]) -> AdmissionStage:
    admission = server.config.admission.model_copy(update={"load_shedding": True})
    config = server.config.model_copy(update={"admission": admission})
    return AdmissionStage(config, served, AdmissionMetrics())


def work_for(replicas: ReplicaSet) -> Turn:
    work = Turn(record=RequestRecord("r"), model="tiny", prompt_tokens=10, max_output_tokens=20)
    work.route_request = RouteRequest(prompt_tokens=10)
    choice = replicas.choose(work.route_request)
    assert choice is not None
    work.go_to(choice)
    return work


async def test_a_replica_that_takes_over_a_name_is_judged_by_its_own_statistics(served, stage):
    replicas = served["tiny"].replicas
    (name,) = replicas
    replicas[name].stats = IDLE
    await stage.enter(work_for(replicas))
    replicas.remove(name)
    replicas.add(name, FakeReplica(GENERATE_CARD))
    replicas[name].stats = CROWDED
    with pytest.raises(ApiError) as refused:
        await stage.enter(work_for(replicas))
    assert refused.value.status == 503
    await stage.close()


async def test_where_the_chosen_replica_has_gone_another_takes_the_request_or_none_is_ready(served, stage):
    replicas = served["tiny"].replicas
    (name,) = replicas
    work, other = work_for(replicas), work_for(replicas)
    replicas.add("another", FakeReplica(GENERATE_CARD))
    replicas.remove(name)
    await stage.enter(work)
    assert work.replica == "another"
    replicas.remove("another")
    with pytest.raises(ApiError) as refused:
        await stage.enter(other)
    assert (refused.value.status, refused.value.code) == (503, "model_not_ready")
    await stage.close()
