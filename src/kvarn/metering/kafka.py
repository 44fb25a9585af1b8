"""Settings of librdkafka that the ledger's promises rest on."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kvarn.config.platform import KafkaConfig

_log = logging.getLogger("kvarn.kafka")

Settings = dict[str, str | int | float | bool]

DELIVERY_TIMEOUT_S = 20.0
"""After which a message that the broker has not taken is handed back, and tried again from the outbox."""


def producer_settings(config: KafkaConfig) -> Settings:
    """Every message at least once and in order, in batches; what the configuration adds cannot weaken that."""
    return {
        "linger.ms": 5,
        "message.timeout.ms": int(1000 * DELIVERY_TIMEOUT_S),
        **config.settings,
        "bootstrap.servers": config.bootstrap_servers,
        "enable.idempotence": True,
        "acks": "all",
    }


def consumer_settings(config: KafkaConfig) -> Settings:
    """From the beginning of the topic; offsets are committed by hand, behind the database's transaction."""
    return {
        "auto.offset.reset": "earliest",
        **config.settings,
        "bootstrap.servers": config.bootstrap_servers,
        "group.id": config.group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
    }


def callbacks(what: str) -> Mapping[str, object]:
    """librdkafka's news go into the log; the client recovers by itself."""

    def note(error: object) -> None:
        _log.warning("%s: %s", what, error)

    return {"error_cb": note, "logger": _log}
