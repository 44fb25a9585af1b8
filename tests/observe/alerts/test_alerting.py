"""Rules and boards with the real Prometheus and Alertmanager: each alert fires at a webhook from its cause, and is
resolved; each expression of the boards has a value."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Gauge

from alert_world import AlertWorld, add_limited_tenant, with_more_replicas
from boards import BOARDS
from kvarn.config.alerts import AlertsConfig
from kvarn.config.platform import BatchesConfig, KafkaConfig, MeteringConfig, SloConfig
from kvarn.config.quality import QualityConfig
from kvarn.config.routes import RouteConfig, TargetConfig
from kvarn.observe.alerts.rules import RULES
from mock_kafka import MockKafka
from monitoring import AlertReceiver, Prometheus, monitoring, sped_up
from vllm_boards import EXPRESSIONS

FACTOR = 150.0
"""A rule that waits for 15 minutes waits for 6 s."""


@pytest.fixture(scope="module")
def receiver() -> Iterator[AlertReceiver]:
    with AlertReceiver().serving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def world(serve: Any, checkpoint: Path, receiver: AlertReceiver) -> Iterator[AlertWorld]:
    with MockKafka() as kafka:
        brokers = KafkaConfig(bootstrap_servers=kafka.servers, settings={"message.timeout.ms": 500})
        config = {
            "batches": BatchesConfig(enabled=False),  # its evaluations would take away scores that are not stored
            "alerts": AlertsConfig(interval_s=0.25, webhook_url=f"http://127.0.0.1:{receiver.port}/own"),
            "metering": MeteringConfig(kafka=brokers),
            "slo": SloConfig(ttft_target_s=0.5),
            "quality": QualityConfig(interval_s=0.2, max_share=1, prompts=1, max_tokens=1),
            "routes": (RouteConfig(name="chosen", targets=(TargetConfig(model="tiny"),)),),
        }
        made: list[AlertWorld] = []

        def prepare(server: Any) -> None:
            made.append(AlertWorld(server, kafka))
            with_more_replicas(server, made[0].others, checkpoint)

        with serve(prepare, config=config) as server:
            add_limited_tenant(server)
            with made[0].under_load():
                yield made[0]


@pytest.fixture(scope="module")
def prometheus(
    world: AlertWorld, receiver: AlertReceiver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    rules = [sped_up(rule, FACTOR) for rule in RULES]
    targets = [f"127.0.0.1:{port}" for port in (world.server.port, receiver.port)]
    with monitoring(tmp_path_factory.mktemp("monitoring"), targets, rules, receiver) as running:
        yield running


@pytest.fixture(scope="module")
def score(world: AlertWorld) -> Gauge:
    metrics, labels = world.server.gateway.metrics, ("tiny", "1", "smoke")
    metrics.quality_baseline_score.labels(*labels).set(0.8)
    metrics.quality_score.labels(*labels).set(0.8)
    return metrics.quality_score


def test_each_alert_fires_at_a_webhook_from_its_cause_and_is_resolved(
    world: AlertWorld, prometheus: Prometheus, receiver: AlertReceiver, score: Gauge
) -> None:
    every = {rule.name for rule in RULES}

    def missing(status: str) -> set[str]:
        """Rules of which this was not the latest that Alertmanager told."""
        return {name for name in every if receiver.told("/alertmanager", name)[-1:] != [status]}

    world.go_wrong()
    receiver.is_down = True
    score.labels("tiny", "1", "smoke").set(0.7)
    receiver.wait(lambda: "KvarnPublisherLag" not in missing("firing"), lambda: missing("firing"))
    world.lock_database()  # from now on nothing new reaches the outbox
    receiver.wait(lambda: all(receiver.told("/alertmanager", name) for name in every), lambda: missing("firing"))

    world.unlock_database()
    world.get_right()
    receiver.is_down = False
    score.labels("tiny", "1", "smoke").set(0.8)
    receiver.wait(lambda: not missing("resolved"), lambda: missing("resolved"))

    # What the server itself evaluates, at the rules' own times, it tells its own webhook.
    drifted = partial(receiver.told, "/own", "KvarnReplicaDrifted")
    receiver.wait(lambda: drifted()[-1:] == ["resolved"], drifted)
    assert drifted()[0] == "firing"


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_each_expression_of_a_board_has_a_value(prometheus: Prometheus, wait_for: Any, board: Any) -> None:
    expressions = [line[0] for panels in board.rows.values() for panel in panels for line in panel.lines]
    have_values(prometheus, wait_for, [_filled_in(each) for each in expressions])


def test_each_expression_of_vllms_boards_has_a_value(prometheus: Prometheus, wait_for: Any) -> None:
    of_us = [each.replace('"m"', '"tiny"').replace("[5m]", "[2s]") for each in EXPRESSIONS]
    have_values(prometheus, wait_for, of_us)


def have_values(prometheus: Prometheus, wait_for: Any, expressions: list[str]) -> None:
    missing = expressions

    def all_found() -> bool:
        nonlocal missing
        missing = [each for each in missing if not any(_is_number(found) for found in prometheus.query(each))]
        return not missing

    try:
        wait_for(all_found, "a value of each")  # the first ones come with the third scrape
    except AssertionError:
        assert missing == []
        raise


def _is_number(found: dict[str, Any]) -> bool:
    return not math.isnan(float(found["value"][1]))


def _filled_in(expression: str) -> str:
    """The expression as Grafana sends it, for all models."""
    return expression.replace("$__rate_interval", "2s").replace('"$model"', '".*"')
