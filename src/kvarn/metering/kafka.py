"""Messages of usage events, and the settings of librdkafka that the ledger's promises rest on.

A message is a JSON object with the fields of `usage_events` and the schema's version. A consumer must ignore fields it
does not know; `schema` grows only when a field changes its meaning or goes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from kvarn.config.platform import KafkaConfig
from kvarn.store.ledger import LedgerEvent

SCHEMA = 1
"""Version of the message format."""

_log = logging.getLogger("kvarn.kafka")
_encoder = msgspec.json.Encoder()
_HEAD = b'{"schema":%d,' % SCHEMA

Settings = dict[str, str | int | float | bool]

DELIVERY_TIMEOUT_S = 20.0
"""After which a message that the broker has not taken is handed back, and tried again from the outbox."""


def producer_settings(config: KafkaConfig) -> Settings:
    """Every message at least once and in order, in batches; added settings cannot weaken that."""
    return {
        "linger.ms": 5,
        "message.timeout.ms": int(1000 * DELIVERY_TIMEOUT_S),
        **config.settings,
        "bootstrap.servers": config.bootstrap_servers,
        "enable.idempotence": True,
        "acks": "all",
    }


def consumer_settings(config: KafkaConfig) -> Settings:
    """From the beginning of the topic; offsets are committed by hand, after the database's transaction."""
    return {
        "auto.offset.reset": "earliest",
        **config.settings,
        "bootstrap.servers": config.bootstrap_servers,
        "group.id": config.group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
    }


def callbacks(what: str) -> Mapping[str, object]:
    """Log librdkafka's errors; the client recovers by itself."""

    def note(error: object) -> None:
        _log.warning("%s: %s", what, error)

    return {"error_cb": note, "logger": _log}


class NewerSchemaError(Exception):
    """A newer Kvarn wrote the message."""


class _Head(msgspec.Struct):
    schema: int


def encode_message(event: LedgerEvent) -> bytes:
    return _HEAD + _encoder.encode(event)[1:]


def decode_message(value: bytes) -> LedgerEvent:
    """The event of a message.

    Raises:
        msgspec.DecodeError: It is no usage event.
        NewerSchemaError: It needs a newer Kvarn.
    """
    head = msgspec.json.decode(value, type=_Head)
    if head.schema > SCHEMA:
        raise NewerSchemaError(f"a usage event of schema {head.schema}; this Kvarn reads up to {SCHEMA}: upgrade it")
    return msgspec.json.decode(value, type=LedgerEvent)
