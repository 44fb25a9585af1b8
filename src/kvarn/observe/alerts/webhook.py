"""Messages to a webhook about alerts that fire or are resolved, in the form of Alertmanager's."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import httpx

from kvarn.observe.alerts.monitor import AlertState, Transition

MAX_WAITING = 1000
"""Transitions that may wait for the webhook; after that, the oldest are dropped."""
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Pauses between tries; a message that is not taken after the last is given up."""
_TIMEOUT_S = 10.0
_LONGEST_S = 30.0
"""Seconds for one message in all, however slowly it is answered."""
_NOT_OVER = "0001-01-01T00:00:00Z"

_log = logging.getLogger("kvarn.observe")


class AlertWebhook:
    """Tells one URL. Belongs to one event loop.

    Args:
        url: The operator's own choice: any address is good. Redirects are not followed.
        headers: Headers of each message.
        pause: Waits for some seconds.
        transport: In place of the network.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.sent_total = self.failed_total = 0
        self.last_error: str | None = None
        """Reason why the latest message was not taken; None: it was."""
        self._url = url
        self._pause = pause
        self._waiting: deque[Transition] = deque()
        self._http = httpx.AsyncClient(headers=dict(headers or {}), timeout=_TIMEOUT_S, transport=transport)

    def add(self, transitions: Sequence[Transition]) -> None:
        """Tell of these soon."""
        self._waiting.extend(transitions)
        dropped = max(0, len(self._waiting) - MAX_WAITING)
        for _ in range(dropped):
            self._waiting.popleft()
        if dropped:
            self.failed_total += dropped
            _log.error("alerts were not told: the webhook is away", extra={"alerts": dropped})

    async def deliver(self) -> None:
        """Tell of what waits, in order."""
        while self._waiting:
            transitions = list(self._waiting)
            self._waiting.clear()
            for _, group in groupby(transitions, key=lambda each: (each.rule.name, each.state)):
                alerts = list(group)
                await self._send(alerts)

    async def close(self) -> None:
        await self._http.aclose()

    async def _send(self, alerts: Sequence[Transition]) -> None:
        body = message(alerts)
        for pause_s in (*PAUSES_S, None):
            error, is_final = await self._try(body)
            self.last_error = error
            if error is None:
                self.sent_total += len(alerts)
                return
            if is_final or pause_s is None:
                break
            await self._pause(pause_s)
        self.failed_total += len(alerts)
        _log.error("the webhook did not take an alert", extra={"rule": alerts[0].rule.name, "reason": error})

    async def _try(self, body: Mapping[str, Any]) -> tuple[str | None, bool]:
        """Why the webhook did not take a message, and whether it never will."""
        try:
            # What it says is not read: it may be without an end.
            async with asyncio.timeout(_LONGEST_S), self._http.stream("POST", self._url, json=body) as answer:
                status = answer.status_code
        except (httpx.HTTPError, TimeoutError) as error:
            return f"{type(error).__name__}: {error}", False
        except httpx.InvalidURL as error:
            return f"alerts.webhook_url is no URL: {error}", True
        return (None if answer.is_success else f"status {status}"), status < 500 and status != 429


def message(alerts: Sequence[Transition]) -> dict[str, Any]:
    """Alertmanager's message, version 4, about alerts of one rule that are in the same state."""
    rule, status = alerts[0].rule, _status(alerts[0])
    each = [_alert(alert) for alert in alerts]
    return {
        "version": "4",
        "groupKey": f'{{}}:{{alertname="{rule.name}"}}',
        "truncatedAlerts": 0,
        "status": status,
        "receiver": "kvarn",
        "groupLabels": {"alertname": rule.name},
        "commonLabels": _common([alert["labels"] for alert in each]),
        "commonAnnotations": _common([alert["annotations"] for alert in each]),
        "externalURL": "",
        "alerts": each,
    }


def _alert(alert: Transition) -> dict[str, Any]:
    rule = alert.rule
    labels = {"alertname": rule.name, **dict(alert.labels), "severity": rule.severity.value}
    assert alert.fired_at is not None
    return {
        "status": _status(alert),
        "labels": labels,
        "annotations": {"summary": rule.summary(alert.labels, alert.value), "description": rule.meaning},
        "startsAt": _written(alert.fired_at),
        "endsAt": _written(alert.at) if alert.state is AlertState.RESOLVED else _NOT_OVER,
        "generatorURL": "",
        "fingerprint": hashlib.sha256(repr(sorted(labels.items())).encode()).hexdigest()[:16],
    }


def _status(alert: Transition) -> str:
    return "resolved" if alert.state is AlertState.RESOLVED else "firing"


def _common(each: Iterable[Mapping[str, str]]) -> dict[str, str]:
    first, *others = each
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
