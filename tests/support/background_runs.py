"""Gateways with responses in the background, and what tests do with them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from fake_replica import answer_text

Open = Callable[..., AbstractContextManager[Any]]


async def _event() -> asyncio.Event:
    return asyncio.Event()


def hold(server: Any) -> Callable[[], None]:
    """Make the engine wait before its first token; returns what lets it go on."""
    gate = server.chat.hold = server.do(_event())
    return lambda: server.loop.call_soon_threadsafe(gate.set)


def hold_later(server: Any) -> None:
    """As `hold`, for a server that does not serve yet."""
    server.chat.step_s, server.chat.answer = 0.05, lambda request, index: answer_text("x" * 400)


def queue(server: Any, **body: Any) -> str:
    with server.client() as client:
        answer = client.post("/v1/responses", json={"model": "tiny", "input": "Hej", "background": True, **body})
    assert answer.status_code == 200 and answer.json()["status"] == "queued", answer.text
    return str(answer.json()["id"])


def state(server: Any, response_id: str) -> dict[str, Any]:
    with server.client() as client:
        found: dict[str, Any] = client.get(f"/v1/responses/{response_id}").json()
    return found


def events_again(server: Any, response_id: str, after: int = -1) -> list[dict[str, Any]]:
    with server.client() as client:
        where = f"/v1/responses/{response_id}?stream=true" + (f"&starting_after={after}" if after >= 0 else "")
        text = client.get(where).text
    return [json.loads(block.partition("\ndata: ")[2]) for block in text.split("\n\n") if block]
