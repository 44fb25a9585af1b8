"""`/console/api/alerts`: states of the rules, for platform administrators."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from kvarn.config.alerts import AlertsConfig
from kvarn.gateway.alerting import Alerting
from kvarn.gateway.console.api.alerts import view_of
from kvarn.store.owner import ANYBODY, Role
from kvarn.wire.messages import EngineStats


@pytest.fixture(scope="module")
def alerting(serve: Any) -> Any:
    config = {"alerts": AlertsConfig(interval_s=0.1, off=("KvarnPrefixHitRateLow",))}
    with serve(config=config) as server:
        yield server


def _rule(body: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [rule for rule in body["rules"] if rule["name"] == name]
    return found


def test_a_full_cache_is_pending_and_then_over(alerting: Any, wait_for: Any) -> None:
    admin = alerting.client()  # an open server: anybody is an administrator
    events = admin.stream("GET", "/console/api/alerts/stream")
    with events as stream:
        lines = stream.iter_lines()
        quiet = _next_event(lines)
        assert _rule(quiet, "KvarnKvCacheFull")["state"] == "ok"
        alerting.chat.stats = EngineStats(kv_blocks_total=100, kv_blocks_free=2)
        while (full := _rule(_next_event(lines), "KvarnKvCacheFull"))["state"] == "ok":
            pass
    assert full["state"] == "pending" and full["value"] == 0.98 and full["labels"] == {"model": "tiny"}
    (alert,) = full["alerts"]
    assert alert["summary"] == "The KV cache is more than 95 % full: 98.0 %, model tiny"
    assert alert["since"] == full["since"] and full["remedy"]
    alerting.chat.stats = EngineStats(kv_blocks_total=100, kv_blocks_free=100)
    wait_for(lambda: _rule(admin.get("/console/api/alerts").json(), "KvarnKvCacheFull")["state"] == "ok", "the end")
    newest, oldest = admin.get("/console/api/alerts").json()["transitions"]
    assert (oldest["state"], newest["state"], newest["fired"]) == ("pending", "resolved", False)


def _next_event(lines: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(line for line in lines if line.startswith("data: ")).removeprefix("data: "))
    return found


def test_rules_that_are_off_or_need_prometheus_are_not_shown(alerting: Any) -> None:
    names = [rule["name"] for rule in alerting.client().get("/console/api/alerts").json()["rules"]]
    assert "KvarnKvCacheFull" in names
    assert "KvarnPrefixHitRateLow" not in names and "KvarnGatewayDown" not in names


def test_a_process_that_does_not_tell_the_webhook_says_that_there_is_one() -> None:
    config = AlertsConfig(webhook_url="http://alerts.example/hook")
    told = view_of(Alerting(config, _no_metrics, tells=False))
    assert told.webhook_configured and told.webhook is None
    assert not view_of(Alerting(AlertsConfig(), _no_metrics, tells=True)).webhook_configured


async def _no_metrics() -> CollectorRegistry:
    return CollectorRegistry()


def test_only_platform_administrators_see_alerts(alerting: Any) -> None:
    for name, changes in (("member", {"owner": ANYBODY.owner, "role": Role.MEMBER}), ("other", {"role": Role.ADMIN})):
        answer = alerting.add_tenant(name, **changes).get("/console/api/alerts")
        assert answer.status_code == 403, name


def test_the_public_description_leaves_the_route_out(alerting: Any) -> None:
    assert not [path for path in alerting.client().get("/openapi.json").json()["paths"] if "console" in path]
