"""The desired state: the configuration's models, and over them the deployments in the database."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from pydantic import ValidationError

from kvarn.config.model import ModelConfig
from kvarn.config.schema import KvarnConfig
from kvarn.wire.messages import AdapterInfo

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CandidateVersion:
    model: ModelConfig
    version: int
    share: float
    fingerprints: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Desired:
    model: ModelConfig
    version: int = 0
    """The deployment's version; 0: the configuration's."""
    replicas: int | None = None
    """Set by `kvarn scale`; None: as the version says."""
    candidate: CandidateVersion | None = None  # the version that is rolled out beside this one
    adapters: tuple[AdapterInfo, ...] = ()
    """Adapters loaded at run time, which belong to all versions."""
    fingerprints: Mapping[str, Any] | None = None
    """Digests of the version's files; None: not known yet, or the configuration's version."""

    @property
    def count(self) -> int:
        """Replicas that shall take requests; where they follow the work, those to begin with."""
        if self.replicas is not None:
            return self.replicas
        scale = self.model.autoscale
        if scale is None:
            return self.model.replicas
        if not scale.min_replicas and "replicas" not in self.model.model_fields_set:
            return 0
        return min(max(self.model.replicas, scale.min_replicas), scale.max_replicas)


def replicas_of(share: float, serving: int) -> int:
    """Replicas that answer a share of the requests as well as `serving` replicas answer all; at least one."""
    return max(1, math.ceil(share * serving - 1e-9))


DesiredModels = dict[str, Desired]  # by the model's name


class ReplicaCounts:
    """The number of replicas of each model: the desired one here; an autoscaler follows the load."""

    def count(self, desired: Desired, running: int) -> int:
        """Replicas that a model needs now; `running`: those that it has and that do not leave."""
        return desired.count

    def pool(self, model: str) -> int:
        return 0

    def forget(self) -> None: ...


class DesiredState:
    """The desired state as last read. It is kept in a file too: a server starts, and goes on, without its database."""

    def __init__(self, config: KvarnConfig) -> None:
        self._config = config
        self._configured: DesiredModels = {model.name: Desired(model) for model in config.models}
        name = hashlib.blake2b((config.store.url or "").encode(), digest_size=4).hexdigest()
        self._file = Path(config.data_dir).expanduser() / f"deployments-{name}.json"
        self._known: list[dict[str, Any]] = []
        try:
            self._known = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            log.error("%s cannot be read; deployments are served once the database answers: %s", self._file, error)
        self.models: DesiredModels = {}
        self.models = self._merged(self._known)

    def merged_config(self) -> KvarnConfig:
        """The configuration with the models that are wanted in place of its own."""
        models = tuple(each.model for each in self.models.values())
        return self._config.model_copy(update={"models": models})

    def update(self, rows: list[dict[str, Any]]) -> DesiredModels:
        """Take over what the database says now: see `read_desired` of its repository."""
        if rows != self._known:
            self._known = rows
            self.models = self._merged(rows)
            temporary = self._file.with_suffix(".new")
            temporary.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(rows), encoding="utf-8")
            temporary.replace(self._file)
        return self.models

    def _merged(self, rows: list[dict[str, Any]]) -> DesiredModels:
        merged = dict(self._configured)
        for row in rows:
            name = row["model"]
            if row["spec"] is None and name not in merged:  # the configuration names it no longer
                continue
            try:
                candidate = _candidate_of(name, row.get("candidate"))
                adapters = msgspec.convert(row.get("adapters", ()), tuple[AdapterInfo, ...])
                if row["spec"] is None:  # as the configuration says
                    merged[name] = Desired(merged[name].model, 0, row["replicas"], candidate, adapters)
                    continue
                model = model_of(name, row["spec"])
            except ValidationError as error:
                log.error(
                    "version %d of %r cannot be served by this Kvarn; the previous version goes on: %s",
                    row["version"],
                    name,
                    error,
                )
                if (before := self.models.get(name)) is not None:
                    merged[name] = before
                continue
            bound = row.get("fingerprints")
            merged[name] = Desired(model, row["version"], row["replicas"], candidate, adapters, bound)
        return merged


def _candidate_of(name: str, row: Mapping[str, Any] | None) -> CandidateVersion | None:
    if row is None:
        return None
    return CandidateVersion(model_of(name, row["spec"]), row["version"], row["share"], row.get("fingerprints"))


def model_of(name: str, spec: Mapping[str, Any]) -> ModelConfig:
    """The configuration that a version's spec stands for. Raises `ValidationError`."""
    return ModelConfig.model_validate({**spec, "name": name})


def changed(model: ModelConfig | None, name: str, settings: Mapping[str, Any]) -> ModelConfig:
    """A model, or a new one, with other settings in the shape of the configuration's `models[]`: sections are merged,
    everything else is replaced; null is the default again. Raises `ValidationError`."""
    return model_of(name, _merge({} if model is None else spec_of(model), settings))


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            before = merged.get(key)
            merged[key] = _merge(before if isinstance(before, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


def spec_of(model: ModelConfig) -> dict[str, Any]:
    """The settings of a model that a version stores: those that were set, even to their default, without the name.
    Empty sections are left out."""
    spec = model.model_dump(mode="json", exclude_unset=True, exclude={"name"})
    defaults = type(model).model_fields
    return {
        key: value
        for key, value in spec.items()
        if value != {} or getattr(model, key) != defaults[key].get_default(call_default_factory=True)
    }
