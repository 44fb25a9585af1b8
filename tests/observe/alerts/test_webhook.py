"""The webhook that hears of alerts: Alertmanager's messages, in order, tried again while it is away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx

from kvarn.observe.alerts.monitor import AlertState, Transition
from kvarn.observe.alerts.rules import RULES
from kvarn.observe.alerts.webhook import MAX_WAITING, PAUSES_S, AlertWebhook

KV_FULL = next(rule for rule in RULES if rule.name == "KvarnKvCacheFull")


def _transition(state: AlertState, model: str = "m", at: float = 100.5) -> Transition:
    return Transition(KV_FULL, (("model", model),), state, 0.97, at, fired_at=60.0)


class Receiver:
    """Answers with these statuses, then with 200."""

    def __init__(self, statuses: Sequence[int] = ()) -> None:
        self.statuses = list(statuses)
        self.messages: list[dict[str, Any]] = []
        self.pauses: list[float] = []
        self.webhook = AlertWebhook(
            "http://127.0.0.1:9/page", {"x-key": "k"}, pause=self._pause, transport=httpx.MockTransport(self._answer)
        )

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        assert request.headers["x-key"] == "k"
        self.messages.append(json.loads(request.content))
        status = self.statuses.pop(0) if self.statuses else 200
        return httpx.Response(status, headers={"location": "http://127.0.0.1:9/other"})

    def tell(self, *transitions: Transition) -> None:
        self.webhook.add(transitions)
        asyncio.run(self.webhook.deliver())


def test_a_message_has_alertmanagers_form() -> None:
    receiver = Receiver()
    receiver.tell(_transition(AlertState.FIRING, "a"), _transition(AlertState.FIRING, "b"))
    (message,) = receiver.messages
    assert message["version"] == "4" and message["status"] == "firing"
    assert message["groupLabels"] == {"alertname": "KvarnKvCacheFull"}
    assert message["commonLabels"] == {"alertname": "KvarnKvCacheFull", "severity": "P1"}
    first, second = message["alerts"]
    assert first["labels"] == {"alertname": "KvarnKvCacheFull", "severity": "P1", "model": "a"}
    assert first["annotations"]["summary"] == "The KV cache is more than 95 % full: 97.0 %, model a"
    assert (first["startsAt"], first["endsAt"]) == ("1970-01-01T00:01:00Z", "0001-01-01T00:00:00Z")
    assert first["fingerprint"] != second["fingerprint"]


def test_what_fired_and_was_resolved_is_told_in_order() -> None:
    receiver = Receiver()
    receiver.tell(_transition(AlertState.FIRING), _transition(AlertState.RESOLVED))
    assert [message["status"] for message in receiver.messages] == ["firing", "resolved"]
    fired, resolved = (message["alerts"][0] for message in receiver.messages)
    assert resolved["endsAt"] == "1970-01-01T00:01:40.500000Z"
    assert fired["fingerprint"] == resolved["fingerprint"]


def test_a_webhook_that_is_away_is_asked_again() -> None:
    receiver = Receiver([503, 429])
    receiver.tell(_transition(AlertState.FIRING))
    assert len(receiver.messages) == 3 and receiver.pauses == [*PAUSES_S[:2]]
    assert (receiver.webhook.sent_total, receiver.webhook.failed_total, receiver.webhook.last_error) == (1, 0, None)


def test_a_message_that_is_never_taken_is_given_up() -> None:
    receiver = Receiver([500] * 100)
    receiver.tell(_transition(AlertState.FIRING))
    assert receiver.pauses == [*PAUSES_S] and len(receiver.messages) == len(PAUSES_S) + 1
    assert (receiver.webhook.failed_total, receiver.webhook.last_error) == (1, "status 500")


def test_a_refusal_or_a_redirect_is_not_tried_again() -> None:
    for status in (404, 302):
        receiver = Receiver([status])
        receiver.tell(_transition(AlertState.FIRING))
        assert len(receiver.messages) == 1 and receiver.webhook.last_error == f"status {status}"


def test_what_waits_is_bounded_and_the_oldest_is_dropped() -> None:
    receiver = Receiver()
    receiver.tell(*(_transition(AlertState.FIRING, at=float(at)) for at in range(MAX_WAITING + 5)))
    assert sum(len(message["alerts"]) for message in receiver.messages) == MAX_WAITING
    assert receiver.webhook.failed_total == 5


def test_an_answer_without_an_end_is_not_read() -> None:
    async def endless() -> AsyncIterator[bytes]:
        pieces.append(1)
        raise AssertionError("its answer was read")
        yield b""

    pieces: list[int] = []
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=endless()))
    webhook = AlertWebhook("http://127.0.0.1:9/page", transport=transport)
    webhook.add([_transition(AlertState.FIRING)])
    asyncio.run(webhook.deliver())
    assert (webhook.sent_total, webhook.last_error, pieces) == (1, None, [])
