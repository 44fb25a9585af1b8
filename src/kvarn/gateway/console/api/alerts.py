"""`/console/api/alerts`: the alert rules, their states and what changed lately, for platform administrators."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator

import msgspec
from fastapi import Request
from starlette.responses import Response

from kvarn.gateway.alerting import Alerting
from kvarn.gateway.console.router import console_router
from kvarn.gateway.console.streams import console_stream
from kvarn.gateway.dependencies import PlatformAdminDep
from kvarn.observe.alerts.history import Labels
from kvarn.observe.alerts.monitor import AlertMonitor, AlertState, Transition
from kvarn.observe.alerts.rules import Rule
from kvarn.wire.sse import named_event

router = console_router()

MAX_ALERTS = 50
"""Most label sets that are shown of one rule."""
_RANK = ("ok", AlertState.PENDING, AlertState.FIRING)


class AlertView(msgspec.Struct, frozen=True, kw_only=True):
    """One label set of a rule whose value is beyond the threshold. `since`: of this state."""

    labels: dict[str, str]
    state: str
    since: float
    value: float | None
    summary: str


class RuleView(msgspec.Struct, frozen=True, kw_only=True):
    """A rule. `state` is `ok`, `pending` or `firing`, the worst of its alerts; `value` is that nearest to the threshold
    or furthest beyond it, of `labels`, and null where there is none now."""

    name: str
    severity: str
    title: str
    state: str
    since: float | None
    value: float | None
    labels: dict[str, str]
    comparison: str
    threshold: float
    unit: str
    for_s: float
    promql: str
    meaning: str
    first_look: str
    remedy: str
    runbook_anchor: str
    alerts: list[AlertView]
    more_alerts: int
    """Alerts of the rule that are not listed."""


class TransitionView(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    rule: str
    severity: str
    state: str
    labels: dict[str, str]
    value: float | None
    fired: bool
    """Whether it has been firing; a pending one that is resolved has not."""


class WebhookView(msgspec.Struct, frozen=True, kw_only=True):
    sent_total: int
    failed_total: int
    last_error: str | None


class AlertsView(msgspec.Struct, frozen=True, kw_only=True):
    """All rules, those that fire first, and the latest transitions, newest first. States are kept in memory:
    `observed_since` is the start of the process that answers. `webhook` is null where none is configured
    (`webhook_configured`), and in processes that do not tell it."""

    enabled: bool
    evaluated_at: float | None
    observed_since: float
    rules: list[RuleView]
    transitions: list[TransitionView]
    webhook_configured: bool
    webhook: WebhookView | None


@router.get("/alerts")
async def get_alerts(admin: PlatformAdminDep) -> AlertsView:
    return view_of(admin.gateway.control.alerting)


@router.get("/alerts/stream")
async def stream_alerts(request: Request, admin: PlatformAdminDep) -> Response:
    """The same as events named `alerts`, after each evaluation of the rules."""
    return console_stream(request, _events(admin.gateway.control.alerting))


async def _events(alerting: Alerting) -> AsyncGenerator[bytes, None]:
    while True:
        yield named_event("alerts", view_of(alerting))
        await alerting.next_evaluation()


def view_of(alerting: Alerting) -> AlertsView:
    """All that the page shows."""
    monitor, webhook = alerting.monitor, alerting.webhook
    rules = sorted(
        (_rule_view(monitor, rule) for rule in monitor.rules),
        key=lambda rule: (-_RANK.index(rule.state), rule.severity),
    )
    told = None
    if webhook is not None:
        told = WebhookView(
            sent_total=webhook.sent_total, failed_total=webhook.failed_total, last_error=webhook.last_error
        )
    return AlertsView(
        enabled=alerting.enabled,
        evaluated_at=monitor.evaluated_at,
        observed_since=monitor.observed_since,
        rules=rules,
        transitions=[_transition_view(each) for each in reversed(monitor.transitions)],
        webhook_configured=alerting.webhook_configured,
        webhook=told,
    )


def _rule_view(monitor: AlertMonitor, rule: Rule) -> RuleView:
    alerts = [alert for alert in monitor.alerts.values() if alert.rule is rule]
    alerts.sort(key=lambda alert: (-_RANK.index(alert.state), alert.since))
    labels, value = _worst(rule, monitor.values.get(rule.name, {}))
    return RuleView(
        name=rule.name,
        severity=rule.severity.value,
        title=rule.title,
        state=alerts[0].state.value if alerts else "ok",
        since=alerts[0].since if alerts else None,
        value=value,
        labels=dict(labels),
        comparison=rule.comparison,
        threshold=rule.threshold,
        unit=rule.unit,
        for_s=rule.for_s,
        promql=rule.promql,
        meaning=rule.meaning,
        first_look=rule.first_look,
        remedy=rule.remedy,
        runbook_anchor=rule.anchor,
        alerts=[
            AlertView(
                labels=dict(alert.labels),
                state=alert.state.value,
                since=alert.since,
                value=_finite(alert.value),
                summary=rule.summary(alert.labels, alert.value),
            )
            for alert in alerts[:MAX_ALERTS]
        ],
        more_alerts=max(0, len(alerts) - MAX_ALERTS),
    )


def _worst(rule: Rule, values: dict[Labels, float]) -> tuple[Labels, float | None]:
    """The value furthest towards the threshold or beyond it, with its labels."""
    if not values:
        return (), None
    choose = min if rule.comparison == "<" else max
    labels = choose(values, key=lambda each: values[each])
    return labels, _finite(values[labels])


def _transition_view(each: Transition) -> TransitionView:
    return TransitionView(
        at=each.at,
        rule=each.rule.name,
        severity=each.rule.severity.value,
        state=each.state.value,
        labels=dict(each.labels),
        value=_finite(each.value),
        fired=each.fired_at is not None,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
