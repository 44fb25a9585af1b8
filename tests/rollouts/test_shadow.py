"""Shadow traffic: copies that cost nothing, slow nobody down, and tell how a model would have answered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select

from fake_replica import answer_text
from foreign_server import foreign_gateway
from kvarn.rollouts.shadow import agreement_of
from kvarn.store.models import UsageEvent

CHAT = "/v1/chat/completions"
SHADOW = {"model": "next", "share": 1.0, "max_in_flight": 2}


@pytest.fixture
def shadowed(checkpoint: Path, tmp_path: Path) -> Iterator[Any]:
    config = {
        "models": [{"name": name, "path": name} for name in ("now", "next")],
        "routes": [{"name": "chat", "targets": [{"model": "now"}], "shadow": SHADOW}],
    }
    with foreign_gateway(config, checkpoint, tmp_path) as gateway:
        gateway.now, gateway.next = (next(iter(model.replicas.values())) for model in gateway.served.values())
        gateway.now.answer = gateway.next.answer = lambda request, index: answer_text("the same")
        gateway.results = []
        gateway.gateway.control.shadows.on_result = gateway.results.append
        with gateway.client() as client:
            gateway.http = client
            yield gateway


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "chat", "messages": [{"role": "user", "content": "hello"}], **fields}


def metric(gateway: Any, outcome: str) -> float:
    wanted = f'kvarn_shadow_requests_total{{model="next",outcome="{outcome}",route="chat"}} '
    lines = [line for line in gateway.http.get("/metrics").text.splitlines() if line.startswith(wanted)]
    return float(lines[0].split()[-1]) if lines else 0.0


@pytest.mark.parametrize("stream", [True, False])
def test_a_copy_has_the_same_prompt_and_seed_and_the_lowest_priority(
    shadowed: Any, wait_for: Any, stream: bool
) -> None:
    assert shadowed.http.post(CHAT, json=body(stream=stream, temperature=1)).status_code == 200
    wait_for(lambda: len(shadowed.results) == 1, "the copy")
    completion = {"model": "chat", "prompt": "hello", "max_tokens": 50}
    assert shadowed.http.post("/v1/completions", json=completion).json()["choices"][0]["text"] == "the same"
    wait_for(lambda: len(shadowed.results) == 2, "the copies")
    for asked, copied in zip(shadowed.now.submitted, shadowed.next.submitted, strict=True):
        assert copied.prompt_token_ids == asked.prompt_token_ids and copied.sampling == asked.sampling
        assert copied.tenant == asked.tenant and (asked.priority, copied.priority) == (0, 10)
    assert [result.agreement for result in shadowed.results] == [1, 1]
    assert metric(shadowed, "same") == 2


def test_what_differs_is_told(shadowed: Any, wait_for: Any) -> None:
    shadowed.next.answer = lambda request, index: answer_text("the same or not")
    shadowed.http.post(CHAT, json=body())
    wait_for(lambda: shadowed.results, "the copy")
    (result,) = shadowed.results
    assert (result.answer.text, result.copy.text) == ("the same", "the same or not")
    assert result.agreement == len("the same") / len("the same or not") and metric(shadowed, "different") == 1


def test_copies_cost_nothing_and_are_not_limited(shadowed: Any, wait_for: Any) -> None:
    with shadowed.add_tenant("payer", key_id="key_1") as tenant:
        assert tenant.post(CHAT, json=body()).status_code == 200
    organization = shadowed.authenticator.principals["payer"].organization_id
    wait_for(lambda: shadowed.results, "the copy")

    async def models() -> list[str]:
        async with shadowed.gateway.store.reading() as session:
            query = select(UsageEvent.model).where(UsageEvent.organization_id == organization)
            return list((await session.execute(query)).scalars())

    wait_for(lambda: shadowed.do(models()), "the event of the request itself")
    assert shadowed.do(models()) == ["now"]

    async def count() -> int:
        async with shadowed.gateway.store.reading() as session:
            return int((await session.execute(select(func.count()).select_from(UsageEvent))).scalar_one())

    assert shadowed.do(count()) == 1


def test_a_copy_that_hangs_or_fails_is_not_noticed_by_clients(shadowed: Any, wait_for: Any) -> None:
    shadowed.next.step_s = 3600
    for _ in range(4):
        assert shadowed.http.post(CHAT, json=body()).status_code == 200
    wait_for(lambda: metric(shadowed, "dropped") == 2, "two to be dropped: two are under way")
    assert not shadowed.results


@given(st.text("ab", max_size=6), st.text("ab", max_size=6))
def test_agreement_is_the_common_beginning(first: str, second: str) -> None:
    same = 0
    while same < min(len(first), len(second)) and first[same] == second[same]:
        same += 1
    expected = 1.0 if first == second == "" else same / max(len(first), len(second))
    assert agreement_of(first, second) == expected == agreement_of(second, first)
    assert (agreement_of(first, second) == 1) == (first == second)
