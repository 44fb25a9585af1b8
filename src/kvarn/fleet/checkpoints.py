"""The files that replicas of a version load: found on this machine, and bound to the version by digests."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvarn.config.model import ModelConfig
from kvarn.text.checkpoint import checkpoint_fingerprint, resolve_adapter, resolve_checkpoint

_CONFIG = "adapter_config.json"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The files of a version's engines on this machine."""

    model: ModelConfig  # with the adapters' directories
    directory: Path
    draft_directory: Path | None


def find_checkpoints(model: ModelConfig) -> Checkpoints:
    """Find a model's checkpoint, adapters and draft model; download what is on the hub. Raises `TextError`."""
    draft = model.speculation.model
    return Checkpoints(
        _with_found_adapters(model),
        resolve_checkpoint(model.path, progress=_log_progress),
        None if draft is None else resolve_checkpoint(draft, progress=_log_progress),
    )


class VersionChangedError(Exception):
    """Files of a version are not those that it was deployed with; the message says which."""


def fingerprints_of(found: Checkpoints) -> dict[str, Any]:
    fingerprints: dict[str, Any] = {"checkpoint": checkpoint_fingerprint(found.directory)}
    if found.draft_directory is not None:
        fingerprints["draft model"] = checkpoint_fingerprint(found.draft_directory)
    if found.model.adapters:
        fingerprints["adapters"] = {each.name: _adapter_fingerprint(Path(each.path)) for each in found.model.adapters}
    return fingerprints


def check_binding(bound: Mapping[str, Any] | None, found: Checkpoints) -> None:
    """Raise `VersionChangedError` for files that are not those a version was deployed with; `bound` is what
    `fingerprints_of` said then, None where it has not been asked yet."""
    if bound is None:
        return
    now = fingerprints_of(found)
    changed = [part for part in bound if bound[part] != now.get(part)]
    if changed:
        raise VersionChangedError(
            f"the {' and the '.join(changed)} of {found.directory} have changed since the version was deployed: put "
            "the files back, or deploy them as another version"
        )


def _adapter_fingerprint(directory: Path) -> str:
    digest = hashlib.sha256((directory / _CONFIG).read_bytes())
    digest.update(checkpoint_fingerprint(directory).encode())
    return digest.hexdigest()[:16]


def _with_found_adapters(model: ModelConfig) -> ModelConfig:
    found = [
        each.model_copy(update={"path": str(resolve_adapter(each.path, progress=_log_progress))})
        for each in model.adapters
    ]
    return model.model_copy(update={"adapters": tuple(found)})


def _log_progress(stage: str, fraction: float) -> None:
    log.info(stage, extra={"done": f"{fraction:.0%}"})
