"""The scenario: a server's own configuration, modelled replicas in place of devices, traffic, faults, seed, duration.

A what-if is the same scenario with a changed setting (`Scenario.changed`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml
from pydantic import Field, ValidationError, model_validator

from kvarn.config.load import explain_errors
from kvarn.config.model import ModelConfig
from kvarn.config.rollout import RolloutConfig
from kvarn.config.routes import RouteConfig
from kvarn.config.schema import KvarnConfig
from kvarn.config.section import Section
from kvarn.config.yaml import parse_yaml
from kvarn.costs.replica_model import ReplicaModel
from kvarn.planner.models import find_model
from kvarn.planner.replicas import table_replica
from kvarn.replica.server.generate import GAUGES_EVERY_S
from kvarn.simulator.calibration import CalibrationError, read_calibration
from kvarn.simulator.modelled_values import ModelledLink, ModelledReplica, ModelledServer, ModelledSpeculation
from kvarn.traffic.arrivals import ArrivalPattern
from kvarn.traffic.presets import PRESETS
from kvarn.traffic.trace import TraceFormat

_PARSERS: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": msgspec.json.decode}


class ScenarioError(ValueError):
    """The scenario cannot be simulated; the message names the field and what to do."""


class DeviceConfig(Section):
    """Devices of the table on which a model runs, in place of a modelled replica."""

    device: str = Field(min_length=1)
    """Name of a device, such as `h100` (`kvarn plan` has the table)."""

    model: str = ""
    """Model by its name, or a folder with its config.json. Default: the `path` of the model."""

    speculation: ModelledSpeculation | None = None
    """Guesses of the model's proposer. Default: none are simulated."""

    disk_link: ModelledLink | None = None
    """The disk of the host, which `kv_tiers.disk_gib` needs: `bytes_per_s`, `latency_s`."""


class TrafficConfig(Section):
    """One stream of requests. Several of them, for one model or several, come together."""

    model: str = ""
    """Model it asks. Default: those that a trace names, else the first."""

    preset: str | None = Field(None, min_length=1)
    """Generator of the traffic, by its name (`kvarn simulate --help` lists them)."""

    trace: str | None = Field(None, min_length=1)
    """File of recorded traffic."""

    trace_format: TraceFormat = "auto"
    """Format of that file."""

    length_scale: float = Field(1.0, gt=0)
    """Factor of the lengths in that file; shared beginnings stay."""

    rate: float | None = Field(None, gt=0, le=1e6)
    """Requests a second on average. Default: as recorded, or 1."""

    pattern: str = "poisson"
    """Arrivals of what is made: `poisson`, `uniform`, `gamma:CV` (bursts above 1), `markov:PEAK`, `diurnal:SWING`, or
    several joined by `+`."""

    prompt_tokens: tuple[int, int] = (512, 512)
    """Tokens of a prompt at least and at most, without preset and trace."""

    output_tokens: tuple[int, int] = (128, 128)
    """Tokens of an answer at least and at most, without preset and trace."""

    shared_prefix_tokens: int = Field(0, ge=0)
    """Tokens that all prompts begin with, without preset and trace."""

    tenants: int = Field(1, ge=1, le=10_000)
    """Tenants that the conversations are of, each as likely."""

    priority: int = Field(0, ge=0, le=10)
    """Tier of the requests: 0 has latency targets, 10 runs on idle capacity."""

    max_requests: int | None = Field(None, ge=1)
    """Requests at most. Default: those of the scenario's duration."""

    @model_validator(mode="after")
    def _has_one_source(self) -> TrafficConfig:
        if self.preset is not None and self.trace is not None:
            raise ValueError("traffic has a `preset` or a `trace`: leave one out")
        if self.preset is not None and self.preset not in PRESETS:
            raise ValueError(f"there is no traffic {self.preset!r}: take one of {', '.join(PRESETS)}")
        ArrivalPattern.parse(self.pattern)
        for name in ("prompt_tokens", "output_tokens"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise ValueError(f"{name} must be two numbers of 1 and more, the smaller one first")
        return self


class FaultConfig(Section):
    """A fault of one replica, at a time or at a rate."""

    kind: Literal["kill", "hang", "slow", "partition", "outage"]
    """`kill`: its process ends. `hang`: it computes nothing. `slow`: its steps take `factor` times as long.
    `partition`: the gateway does not reach it. `outage`: a server of an external model fails what it is sent."""

    model: str = ""
    """Model of the replica. Default: the first."""

    replica: int | None = Field(None, ge=0)
    """Number of the replica in the order in which they were started. Default: any that is ready, drawn."""

    at_s: float | None = Field(None, ge=0)
    """Seconds after the start. Needed unless `per_hour` is given."""

    per_hour: float | None = Field(None, gt=0)
    """Faults of this kind in an hour on average, at random times, each of a replica that is drawn."""

    lasts_s: float = Field(30.0, gt=0)
    """Seconds until it is over, of all but `kill`."""

    factor: float = Field(2.0, gt=1)
    """Factor of a slow replica's steps."""

    @model_validator(mode="after")
    def _has_a_time(self) -> FaultConfig:
        if (self.at_s is None) == (self.per_hour is None):
            raise ValueError("a fault has a time (`at_s`) or a rate (`per_hour`): give one of both")
        return self


class RolloutPlan(Section):
    """A new version of a model, which takes over from the one that serves by a rollout."""

    model: str = ""
    """The model. Default: the first."""

    at_s: float = Field(0.0, ge=0)
    """Seconds after the start."""

    replica: ModelledReplica | None = None
    """Modelled replica of the new version. Default: the model's."""

    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings in which the new version differs, in the shape of the configuration's `models[]`."""

    error_rate: float = Field(0.0, ge=0, le=1)
    """Share of its requests that the new version cannot begin to answer."""

    rollout: RolloutConfig | None = None
    """Steps and gates. Default: the configuration's. See docs/guides/rollouts.md."""


class Scenario(Section):
    """A simulation's inputs, but for conversations that are passed in."""

    name: str = ""
    """Name in reports."""

    config: KvarnConfig
    """Configuration as a server has it: models with their engine, replicas, autoscale, routing, failover; slo and
    admission. Paths of models are not read."""

    replicas: dict[str, ModelledReplica] = Field(default_factory=dict)
    """A modelled replica of each model, by the model's name."""

    externals: dict[str, ModelledServer] = Field(default_factory=dict)
    """The servers of each external model, by the model's name."""

    devices: dict[str, DeviceConfig] = Field(default_factory=dict)
    """Devices of models that have no modelled replica, by the model's name: one is made from the table, as the model's
    settings divide and hold it."""

    traffic: tuple[TrafficConfig, ...] = ()
    """Traffic to make."""

    faults: tuple[FaultConfig, ...] = ()
    """Faults to cause."""

    rollouts: tuple[RolloutPlan, ...] = ()
    """New versions to roll out."""

    seed: int = Field(0, ge=0, lt=1 << 63)
    """Seed of all that is drawn."""

    duration_s: float = Field(600.0, gt=0, le=31 * 86400)
    """Seconds of traffic; requests that are under way then are played to their end."""

    drain_s: float = Field(600.0, ge=0)
    """Seconds after `duration_s` at most; requests that are not answered by then have failed."""

    stats_interval_s: float = Field(GAUGES_EVERY_S, gt=0)
    """Seconds between two statistics of an engine at work. Default: as engines have it."""

    fast_forward: bool = True
    """Take steps that only decode together. The outcome is the same."""

    any_scheduler: bool = False
    """Take replicas that were measured with other scheduling code than this, too."""

    client_timeout_s: float | None = Field(None, gt=0)
    """Seconds after which a client leaves that has no answer yet. Default: it waits."""

    @model_validator(mode="before")
    @classmethod
    def _devices_make_replicas(cls, raw: Any) -> Any:
        """Make replicas anew at each change of a setting: another quantisation, another replica."""
        if not isinstance(raw, dict) or not raw.get("devices"):
            return raw
        config = KvarnConfig.model_validate(raw.get("config"))
        made = {}
        for name, devices in raw["devices"].items():
            model = next((each for each in config.models if each.name == name), None)
            if model is None:
                raise ValueError(f"`devices` names {name!r}, which is not among the models")
            chosen = DeviceConfig.model_validate(devices)
            planned = find_model(chosen.model or model.path, max_context_length=model.max_context_length)
            replica = table_replica(planned, chosen.device, model)
            stated = {"speculation": chosen.speculation, "disk_link": chosen.disk_link}
            made[name] = msgspec.structs.replace(replica, **stated)
        return raw | {"replicas": dict(raw.get("replicas") or {}) | made}

    @model_validator(mode="after")
    def _names_are_known(self) -> Scenario:
        names = [model.name for model in self.config.models]
        for model in self.config.models:
            if model.external is not None:
                if model.name not in self.externals:
                    raise ValueError(f"{model.name!r} is external: give its servers under `externals`")
                continue
            if model.name not in self.replicas:
                raise ValueError(f"no modelled replica of {model.name!r}: give one under `replicas` or `devices`")
            check_links(model, self.replicas[model.name])
        for name in (*self.replicas, *self.externals):
            if name not in names:
                raise ValueError(f"`replicas` or `externals` names {name!r}, which is not among the models")
        self._check_model_choice(names)
        asking = (
            *(each.model for each in self.traffic),
            *(each.model for each in self.faults),
            *(each.model for each in self.rollouts),
        )
        for asked in asking:
            if asked and asked not in (*names, *(route.name for route in self.config.routes)):
                raise ValueError(
                    f"traffic, a fault or a rollout names the model {asked!r}: name one of {', '.join(names)}"
                )
        return self

    def _check_model_choice(self, names: list[str]) -> None:
        for route in asked_routes(self):
            if unknown := [name for name in route.models if name not in names]:
                raise ValueError(f"the route {route.name!r} names {unknown[0]!r}: only names of models are simulated")
        external = {model.name for model in self.config.models if model.external is not None}
        for fault in self.faults:
            if (fault.kind == "outage") != ((fault.model or names[0]) in external):
                raise ValueError("an `outage` strikes external models, other faults those that Kvarn runs")
        for plan in self.rollouts:
            if (plan.model or names[0]) in external:
                raise ValueError(f"{plan.model!r} is external: only models that Kvarn runs are rolled out")

    def changed(self, settings: Iterable[str]) -> Scenario:
        """The scenario with other values, each `path=value` (`config.models.0.replicas=3`; `config.` may be left out).
        Raises `ScenarioError`."""
        raw = self.model_dump(mode="json")
        for setting in settings:
            path, separator, value = setting.partition("=")
            if not separator:
                raise ScenarioError(f"{setting!r} sets nothing: write it as path=value, such as models.0.replicas=3")
            keys = path.split(".")
            root = raw if keys[0] in type(self).model_fields else raw["config"]
            _set(root, keys, parse_yaml(value), path)
        return _validated(raw, "scenario")


def check_links(model: ModelConfig, replica: ReplicaModel) -> None:
    """Raises `ValueError` where a model moves blocks and its modelled replica has no link for them."""
    tiers, pair = model.kv_tiers, model.disaggregation
    if tiers is not None and tiers.disk_gib and replica.disk_link is None:
        raise ValueError(f"{model.name!r} keeps blocks on disk: its modelled replica needs a `disk_link`")
    if (tiers is not None or pair is not None) and replica.host_link is None:
        raise ValueError(f"{model.name!r} keeps blocks in main memory: its modelled replica needs a `host_link`")
    if pair is not None and replica.peer_link is None:
        raise ValueError(f"{model.name!r} has a second engine for prompts: its modelled replica needs a `peer_link`")


def asked_routes(scenario: Scenario) -> list[RouteConfig]:
    """The routes that traffic names."""
    asked = {each.model for each in scenario.traffic}
    return [route for route in scenario.config.routes if route.name in asked]


def linked_models(scenario: Scenario) -> list[set[str]]:
    """Models that answer for each other: those of each route that is asked, and each model with its fallbacks."""
    routes = [set(route.models) for route in asked_routes(scenario)]
    fallbacks = [{model.name, *(each.model for each in model.fallbacks)} for model in scenario.config.models]
    return routes + fallbacks


def model_of(scenario: Scenario, name: str) -> ModelConfig:
    """A model's configuration; empty: the first one's."""
    return next(each for each in scenario.config.models if not name or each.name == name)


def load_scenario(path: Path) -> Scenario:
    """Read a scenario from YAML, JSON or TOML. Raises `ScenarioError`."""
    return scenario_of(read_mapping(path), path.parent, str(path))


def scenario_of(raw: dict[str, Any], folder: Path, where: str) -> Scenario:
    """Check a scenario as it stands in a file. In place of a replica, the configuration or a trace there may be the
    path of a file, relative to `folder`. `where` names it in errors. Raises `ScenarioError`."""
    raw = dict(raw)
    replicas = raw.get("replicas")
    if isinstance(replicas, dict):
        raw["replicas"] = {
            name: read_replica(folder / each, any_scheduler=raw.get("any_scheduler") is True)
            if isinstance(each, str)
            else each
            for name, each in replicas.items()
        }
    if isinstance(raw.get("config"), str):
        raw["config"] = read_mapping(folder / raw["config"])
    if isinstance(raw.get("traffic"), list):
        raw["traffic"] = [_with_path(each, "trace", folder) for each in raw["traffic"]]
    return _validated(raw, where)


def _with_path(part: Any, key: str, folder: Path) -> Any:
    known = isinstance(part, dict) and isinstance(part.get(key), str)
    return part | {key: str(folder / part[key])} if known else part


def read_replica(path: Path, *, any_scheduler: bool = False) -> Any:
    """A modelled replica's file: the replica itself, an object that has it as `replica`, or a calibration, which must
    be of this scheduling code unless `any_scheduler`."""
    raw = read_mapping(path)
    if str(raw.get("format")).startswith("kvarn-calibration"):
        try:
            return read_calibration(path, any_scheduler=any_scheduler).replica
        except CalibrationError as error:
            raise ScenarioError(str(error)) from None
    return raw.get("replica", raw)


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping of a YAML, JSON or TOML file. Raises `ScenarioError`."""
    try:
        text = path.read_text(encoding="utf-8")
        found = _PARSERS.get(path.suffix, parse_yaml)(text)
    except OSError as error:
        raise ScenarioError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, msgspec.DecodeError, ValueError) as error:
        raise ScenarioError(f"{path} is neither YAML, JSON nor TOML: {error}") from None
    if not isinstance(found, dict):
        raise ScenarioError(f"{path} must hold a mapping, such as `config:` and `replicas:`, at its top")
    return found


def _validated(raw: Any, where: str) -> Scenario:
    try:
        return Scenario.model_validate(raw)
    except ValidationError as error:
        why = explain_errors(error).replace("configuration: ", "")
        raise ScenarioError(f"{where}: {why}") from None


def _set(place: Any, keys: list[str], value: Any, path: str) -> None:
    for number, key in enumerate(keys):
        try:
            index: Any = int(key) if isinstance(place, list) else key
            if number == len(keys) - 1:
                place[index] = value
                return
            if place[index] is None:
                place[index] = {}
            place = place[index]
        except (ValueError, KeyError, IndexError, TypeError):
            raise ScenarioError(f"there is no {'.'.join(keys[: number + 1])} to set ({path})") from None
