"""Admission at the gateway: what clients are told when an engine is full."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import httpx
import msgspec
import pytest

from asking import CHAT, chat, events_of, metric
from fake_replica import GENERATE_CARD, FakeReplica, answer_text
from kvarn.answers.lifecycle import take_in
from kvarn.answers.record import Deferred, RequestRecord
from kvarn.answers.turn import Prompt
from kvarn.catalog.models import ServedModel
from kvarn.config.platform import AdmissionConfig, SloConfig
from kvarn.costs.step_times import StepTimes
from kvarn.replica.client.protocol import ReplicaState
from kvarn.store.owner import Scopes
from kvarn.wire.messages import EngineStats
from profiles import thorough
from raw_http import post_of

TIMES = StepTimes(fixed_s=0.01, prefill_token_s=1e-4, prefill_pair_s=0, decode_row_s=1e-3, decode_token_s=0)
IDLE = EngineStats(step_times=TIMES, step_s=0.01)
FULL = msgspec.structs.replace(IDLE, running=300, decode_rows=300)
"""A step takes 0.31 s: one request more waits for a place."""
SWAMPED = msgspec.structs.replace(IDLE, running=1, prefill_tokens=200_000)
"""Prompts of more than twenty seconds stand before the next."""


Serve = Callable[..., AbstractContextManager[Any]]


@pytest.fixture
def max_queue() -> int:
    """How many may wait."""
    return 4096


@pytest.fixture
def busy(serve: Serve, max_queue: int) -> Any:
    """A server of one's own: what its admission learns stays there."""

    def prepare(server: Any) -> None:
        small = server.config.models[0].model_copy(update={"name": "small"})
        admission = AdmissionConfig(load_shedding=True, max_queue=max_queue)
        models = (
            server.config.models[0].model_copy(update={"fallback": "small"}),
            server.config.models[1],
            small,
        )
        server.configure(models=models, admission=admission, slo=SloConfig(ttft_target_s=8.0))
        server.served["tiny"].config = models[0]
        server.small = FakeReplica(GENERATE_CARD)
        server.small.stats = SWAMPED
        server.small.answer = lambda request, index: answer_text("from the small one")
        server.served["small"] = ServedModel("small", small, [server.small], server.served["tiny"].directory)

    with serve(prepare) as server, server.client() as client:
        server.http = client
        yield server


def in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Start something; the result waits for it."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()

    def result() -> Any:
        thread.join(20)
        assert results, "it did not end"
        return results[0]

    return result


def test_a_request_that_would_be_late_gets_503_and_the_time_to_come_back(busy):
    busy.chat.stats = SWAMPED
    answer = busy.http.post(CHAT, json=chat())
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "overloaded"
    assert 16 <= int(answer.headers["retry-after"]) <= 18, "21 s of prompts and their steps, less six tenths of 8 s"
    assert not busy.chat.submitted
    shed = {"model": "tiny", "tier": "interactive", "decision": "shed"}
    assert metric(busy.http, "kvarn_admission_requests_total", **shed) == 1
    assert metric(busy.http, "kvarn_admission_shed_total", model="tiny", reason="overloaded") == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_waits_for_its_place_and_is_answered(busy, wait_for, stream):
    busy.chat.stats = FULL
    answer = in_thread(lambda: httpx.post(busy.url + CHAT, json=chat(stream=stream), timeout=20))
    length = {"model": "tiny", "tier": "interactive"}
    wait_for(lambda: metric(busy.http, "kvarn_admission_queue_length", **length) == 1, "the request to wait")
    assert not busy.chat.submitted
    busy.chat.stats = IDLE
    assert answer().status_code == 200
    assert metric(busy.http, "kvarn_admission_queue_length", **length) == 0
    for decision in ("queued", "admitted"):
        assert metric(busy.http, "kvarn_admission_requests_total", **length, decision=decision) == 1
    assert metric(busy.http, "kvarn_admission_ttft_error_seconds_count", model="tiny") == 1


def test_a_client_that_leaves_while_it_waits_frees_its_place(busy, wait_for):
    busy.chat.stats = FULL
    raw = busy.connect()
    raw.sendall(post_of(CHAT, chat(max_tokens=20)))
    length = {"model": "tiny", "tier": "interactive"}
    wait_for(lambda: metric(busy.http, "kvarn_admission_queue_length", **length) == 1, "the request to wait")
    raw.close()
    wait_for(lambda: metric(busy.http, "kvarn_admission_queue_length", **length) == 0, "its place to be free")
    assert metric(busy.http, "kvarn_requests_total", endpoint=CHAT, model="tiny", status="499") == 1
    busy.chat.stats = IDLE
    assert busy.http.post(CHAT, json=chat()).status_code == 200
    assert len(busy.chat.submitted) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_smaller_model_answers_where_it_would_be_in_time(busy, stream):
    busy.chat.stats, busy.small.stats = SWAMPED, IDLE
    answer = busy.http.post(CHAT, json=chat(stream=stream))
    assert answer.status_code == 200
    told = events_of(answer)[0] if stream else answer.json()
    assert told["model"] == "small"
    assert len(busy.small.submitted) == 1 and not busy.chat.submitted
    degraded = {"model": "tiny", "tier": "interactive", "decision": "degraded"}
    assert metric(busy.http, "kvarn_admission_requests_total", **degraded) == 1
    assert not metric(busy.http, "kvarn_slo_requests_total", model="tiny", outcome="missed")


def test_nobody_is_sent_to_a_model_that_is_not_ready_or_closed_to_its_key(busy):
    busy.chat.stats, busy.small.stats = SWAMPED, IDLE
    with busy.add_tenant("narrow", scopes=Scopes(models=("tiny",))) as narrow:
        assert narrow.post(CHAT, json=chat()).json()["error"]["code"] == "overloaded"
    busy.small.state = ReplicaState.DOWN
    assert busy.http.post(CHAT, json=chat()).status_code == 503


def test_a_tenant_beyond_its_share_gets_429_and_others_go_on_waiting(busy, wait_for):
    busy.chat.stats, busy.small.stats = FULL, IDLE
    quiet = busy.add_tenant("quiet")
    flood = busy.add_tenant("flood")
    waiting = [in_thread(lambda: quiet.post(CHAT, json=chat()))]
    length = {"model": "tiny", "tier": "interactive"}
    wait_for(lambda: metric(busy.http, "kvarn_admission_queue_length", **length) == 1, "the quiet one to wait")
    codes: list[int] = []
    while 429 not in codes:
        codes.clear()
        assert len(waiting) < 200, "nobody is refused"
        waiting += [
            in_thread(lambda: codes.append(flood.post(CHAT, json=chat(max_tokens=400)).status_code)) for _ in range(10)
        ]
        sent = len(waiting)

        def decided(sent: int = sent) -> bool:
            return bool(codes) or metric(busy.http, "kvarn_admission_queue_length", **length) == sent

        wait_for(decided, "all to be decided")
    assert set(codes) == {429} and not busy.small.submitted, "only what is late for all goes to the other model"
    busy.chat.stats = IDLE
    assert waiting[0]().status_code == 200
    for each in waiting[1:]:
        each()


@pytest.mark.parametrize("max_queue", [1])
def test_no_other_model_answers_where_as_many_wait_as_may(busy, wait_for):
    busy.chat.stats, busy.small.stats = FULL, IDLE
    waiting = in_thread(lambda: busy.http.post(CHAT, json=chat()))
    length = {"model": "tiny", "tier": "interactive"}
    wait_for(lambda: metric(busy.http, "kvarn_admission_queue_length", **length) == 1, "the first to wait")
    answer = busy.http.post(CHAT, json=chat())
    assert answer.json()["error"]["code"] == "queue_full" and not busy.small.submitted
    assert metric(busy.http, "kvarn_slo_requests_total", model="tiny", outcome="missed") == 1
    busy.chat.stats = IDLE
    assert waiting().status_code == 200


def test_the_server_stops_while_requests_wait(serve, wait_for):
    patient = {"admission": AdmissionConfig(load_shedding=True), "slo": SloConfig(ttft_target_s=60)}
    with serve(config=patient, drain_timeout_s=0.1) as server:
        server.chat.stats = FULL
        answer = in_thread(lambda: httpx.post(server.url + CHAT, json=chat(), timeout=20))
        with server.client() as client:
            length = {"model": "tiny", "tier": "interactive"}
            wait_for(lambda: metric(client, "kvarn_admission_queue_length", **length) == 1, "the request to wait")
    assert answer().status_code == 503 and answer().json()["error"]["code"] == "draining"


@pytest.mark.parametrize(
    ("asked", "had", "priority"),
    [
        (None, None, 0),
        ("auto", "default", 0),
        thorough("default", "default", 0),
        ("flex", "flex", 5),
        ("priority", "priority", -10),
        thorough("fast", "priority", -10),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_service_tier_is_a_priority(server, client, asked, had, priority, stream):
    fields = {} if asked is None else {"service_tier": asked}
    answer = client.post(CHAT, json=chat(stream=stream, **fields))
    assert answer.status_code == 200, answer.text
    told = events_of(answer)[0] if stream else answer.json()
    assert told.get("service_tier") == had
    assert server.chat.submitted[0].priority == priority


def test_nobody_is_served_in_a_better_tier_than_its_organisation_may_have(server):
    with server.add_tenant("tier-plain") as plain:
        assert plain.post(CHAT, json=chat(service_tier="priority")).json()["service_tier"] == "default"
        assert plain.post(CHAT, json=chat(priority=-5)).status_code == 200
    with server.add_tenant("tier-paying", priority=-10) as paying:
        assert paying.post(CHAT, json=chat(service_tier="priority")).json()["service_tier"] == "priority"
    with server.add_tenant("tier-low", priority=5) as low:
        assert low.post(CHAT, json=chat(service_tier="default")).json()["service_tier"] == "flex"
    assert [submit.priority for submit in server.chat.submitted] == [0, 0, -10, 5]


@pytest.mark.parametrize("tier", ["express", 1])
def test_an_unknown_tier_is_refused_by_name(client, tier):
    answer = client.post(CHAT, json=chat(service_tier=tier))
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "service_tier"


def test_weight_and_tenant_reach_the_engine(server):
    with server.add_tenant("tier-gold", weight=3.0) as gold:
        assert gold.post(CHAT, json=chat()).status_code == 200
    (submit,) = server.chat.submitted
    assert submit.weight == 3.0 and submit.tenant == server.authenticator.principals["tier-gold"].organization_id


def test_a_line_of_a_batch_waits_without_a_client(busy, wait_for):
    busy.chat.stats = FULL
    record = RequestRecord("line", endpoint=CHAT, deferred=Deferred(10))

    async def begin() -> Any:
        model = busy.gateway.catalog.ready(record, "tiny", "generate")
        prompt = Prompt(model=model, tokens=5, max_output_tokens=5)
        turn = await take_in(busy.gateway, record, prompt)
        assert turn.priority == 10
        await record.close()

    line = in_thread(lambda: busy.do(begin()))
    length = {"model": "tiny", "tier": "batch"}
    wait_for(lambda: metric(busy.http, "kvarn_admission_queue_length", **length) == 1, "the line to wait")
    busy.chat.stats = IDLE
    line()


def test_no_other_models_vectors_answer_for_a_swamped_one(busy):
    busy.served["vec"].config = busy.served["vec"].config.model_copy(update={"fallback": "small"})
    busy.embed.stats, busy.small.stats = SWAMPED, IDLE
    answer = busy.http.post("/v1/embeddings", json={"model": "vec", "input": "ab"})
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "overloaded"
