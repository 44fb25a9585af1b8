"""Preparation of an engine process on another machine than the gateway's."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvarn.replica.spec import DEFAULT_FACTORY, ReplicaSpec
from kvarn.text.checkpoint import resolve_checkpoint


def with_local_checkpoint(spec: ReplicaSpec) -> ReplicaSpec:
    """The spec with the checkpoint's directory on this machine, where the gateway's is not here: downloaded if need be.
    Raises `CheckpointError`."""
    if spec.factory != DEFAULT_FACTORY or Path(spec.directory).exists():
        return spec
    return msgspec.structs.replace(spec, directory=str(resolve_checkpoint(spec.model_config.path)))
