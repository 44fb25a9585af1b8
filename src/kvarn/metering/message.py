"""Usage events as they are published: JSON objects with the fields of `usage_events` and the schema's version.

A consumer must ignore fields it does not know; `schema` grows only when a field changes its meaning or goes.
"""

from __future__ import annotations

import msgspec

from kvarn.store.ledger import LedgerEvent

SCHEMA = 1

_encoder = msgspec.json.Encoder()
_HEAD = b'{"schema":%d,' % SCHEMA


class NewerSchemaError(Exception):
    """The message was written by a newer Kvarn than can be read here."""


class _Head(msgspec.Struct):
    schema: int


def encode_message(event: LedgerEvent) -> bytes:
    """The value of an event's message; its key is the event's id."""
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
