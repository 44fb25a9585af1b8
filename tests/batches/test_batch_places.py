"""Who gets the places for batches: nobody keeps another out, whether its batches run or only wait for a model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest

from batch_jobs import CHAT, WaitFor, await_end, chat_line, outputs, send
from fake_replica import answer_text
from kvarn.config.platform import BatchesConfig, MeteringConfig
from kvarn.wire.messages import EngineStats

BUSY = EngineStats(running=4, waiting=2, waiting_by_priority={0: 2})
EMBED = "/v1/embeddings"
Open = Callable[[int], AbstractContextManager[Any]]


@pytest.fixture
def with_places(serve_stored: Any) -> Open:
    """Serves a gateway that works on so many batches at once."""

    metering = MeteringConfig(budget_refresh_s=0.02)

    def make(places: int) -> AbstractContextManager[Any]:
        batches = BatchesConfig(poll_s=0.05, max_in_flight=8, max_running=places)
        gateway: AbstractContextManager[Any] = serve_stored(config={"batches": batches, "metering": metering})
        return gateway

    return make


def embedding() -> dict[str, Any]:
    return {"custom_id": "e", "method": "POST", "url": EMBED, "body": {"model": "vec", "input": "x"}}


def await_start(client: httpx.Client, batch: dict[str, Any], wait_for: WaitFor) -> None:
    wait_for(lambda: client.get(f"/v1/batches/{batch['id']}").json()["status"] == "in_progress", "it to begin")


@pytest.mark.thorough
def test_one_organisations_batches_do_not_keep_anothers_out(with_places, wait_for):
    with with_places(2) as server:
        server.chat.step_s = 0.05
        server.chat.answer = lambda request, index: answer_text("a long answer")
        with server.add_tenant("red") as red, server.add_tenant("blue") as blue:
            hers = [send(red, [chat_line(i) for i in range(60)]) for _ in range(3)]
            wait_for(lambda: len(server.chat.running) >= 4, "her lines to run")
            await_end(blue, send(blue, [chat_line(0)]), wait_for)
            left = [red.get(f"/v1/batches/{batch['id']}").json()["request_counts"] for batch in hers]
            assert sum(counts["completed"] for counts in left) < 120, "it did not wait until one of hers was over"
            server.chat.step_s = 0.0
            for batch in hers:
                await_end(red, batch, wait_for)
                assert len(outputs(red, batch)) == 60
            assert len(server.chat.submitted) == 181, "no line was run twice"


def test_batches_that_only_wait_for_a_model_give_way_at_once(with_places, wait_for, monkeypatch):
    monkeypatch.setattr("kvarn.batches.worker.STALLED_S", 1000.0)  # another organization waits: that is enough
    with with_places(2) as server:
        server.chat.stats = BUSY
        with server.add_tenant("red") as red, server.add_tenant("blue") as blue:
            hers = [send(red, [chat_line(i) for i in range(5)]) for _ in range(2)]
            for batch in hers:
                await_start(red, batch, wait_for)
            await_end(blue, send(blue, [embedding()], EMBED), wait_for)
            assert server.chat.submitted == []


def test_a_batch_whose_model_has_no_room_holds_no_place(with_places, wait_for, monkeypatch):
    for name in ("STALLED_S", "REST_S"):
        monkeypatch.setattr(f"kvarn.batches.worker.{name}", 1.0)
    with with_places(1) as server:
        server.chat.stats = BUSY
        with server.add_tenant("red") as red, server.add_tenant("blue") as blue:
            hers = send(red, [chat_line(i) for i in range(5)])
            await_start(red, hers, wait_for)
            others = [(blue, send(blue, [embedding()], EMBED)), (red, send(red, [embedding()], EMBED))]
            for client, batch in others:
                await_end(client, batch, wait_for)
            assert server.chat.submitted == []
            server.chat.stats = EngineStats()
            await_end(red, hers, wait_for)
            assert hers["request_counts"] == {"total": 5, "completed": 5, "failed": 0}


def test_a_batch_that_is_refused_again_and_again_pauses_longer_each_time(with_places, wait_for, monkeypatch, caplog):
    monkeypatch.setattr("kvarn.batches.items.FIRST_PAUSE_S", 0.01)
    caplog.set_level("INFO", "kvarn.batches")

    def pauses() -> list[float]:
        return [record.args[1] for record in caplog.records if "a line was refused" in record.msg]

    with with_places(1) as server, server.add_tenant("red") as red:
        budget = {"unit": "tokens", "period": "month", "hard_limit": 1}
        assert red.post("/v1/organization/budgets", json=budget).status_code == 200
        asked = chat_line(0)["body"]
        wait_for(lambda: red.post(CHAT, json=asked).status_code == 429, "the budget to be spent")
        send(red, [chat_line(0)])
        wait_for(lambda: len(pauses()) >= 4, "it to be refused again and again", seconds=20)
        assert pauses()[:4] == [0.01, 0.02, 0.04, 0.08]
