"""What an engine process is told to become: a small message on its standard input."""

from __future__ import annotations

import os
from typing import IO

import msgspec

from kvarn.config.schema import EngineConfig, ModelConfig, ReplicaConfig
from kvarn.replica.spawn import DEFAULT_FACTORY

_LENGTH_BYTES = 4
_MAX_SPEC_BYTES = 1 << 24


class ReplicaSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One engine process: which model, how it schedules, how it reports."""

    model: str
    """JSON of the `ModelConfig`."""
    directory: str
    """The checkpoint's directory on this machine."""
    heartbeat_interval_s: float = 0.5
    log_level: str = "info"
    log_format: str = "text"
    processors: tuple[int, ...] = ()
    """Logical processors to keep to; empty: those that the parent may use."""
    factory: str = DEFAULT_FACTORY
    """`module:function` that turns the spec into a service. Tests name a scripted one; the process around it, its
    sockets and its death are the real ones."""

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        directory: os.PathLike[str] | str,
        replica: ReplicaConfig,
        log_level: str,
        processors: tuple[int, ...] = (),
        *,
        log_format: str = "text",
    ) -> ReplicaSpec:
        """The spec of a model that the configuration names and whose checkpoint has been found."""
        return cls(
            model=model.model_dump_json(),
            directory=os.fspath(directory),
            heartbeat_interval_s=replica.heartbeat_interval_s,
            log_level=log_level,
            log_format=log_format,
            processors=processors,
        )

    @property
    def model_config(self) -> ModelConfig:
        """The model's part of the configuration."""
        return ModelConfig.model_validate_json(self.model)

    @property
    def engine_config(self) -> EngineConfig:
        """How the replica schedules."""
        return self.model_config.engine


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """The first and only message on an engine's standard input, which then stays open as the parent's life-line."""

    spec: ReplicaSpec
    inbox: str
    """ZMQ address that the engine binds and reads."""
    outbox: str
    """ZMQ address that the engine connects to and writes."""
    spawned_at: float
    """`time.monotonic()` of the parent just before it started the process."""


def write_handover(stream: IO[bytes], handover: Handover) -> None:
    """Write the message with its length in front, and leave the stream open."""
    payload = msgspec.msgpack.encode(handover)
    stream.write(len(payload).to_bytes(_LENGTH_BYTES, "little") + payload)
    stream.flush()


def read_handover(descriptor: int) -> Handover | None:
    """Read the message; None if the parent closed the stream before it was whole.

    Raises:
        ValueError: What was read is no handover.
    """
    header = _read_exactly(descriptor, _LENGTH_BYTES)
    if header is None:
        return None
    length = int.from_bytes(header, "little")
    if length > _MAX_SPEC_BYTES:
        raise ValueError(f"a handover of {length} bytes: this process is started by `kvarn serve`, not by hand")
    payload = _read_exactly(descriptor, length)
    return None if payload is None else msgspec.msgpack.decode(payload, type=Handover)


def _read_exactly(descriptor: int, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = os.read(descriptor, count - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
