"""Which model answers a request for a route's name: pins, rules, weights; and what comes after it when it cannot."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from xxhash import xxh3_64_intdigest

from kvarn.config.routes import FallbackConfig, FallbackReason, RouteConfig, RuleConfig, TargetConfig

_RANGE = float(2**64)

PredictTtft = Callable[[str], float | None]  # seconds to the first token that a model would take now; None: unknown


def version_name(model: str, version: int) -> str:
    """The name of one version of a model, such as `chat@2`: requests for it are answered by that version only."""
    return f"{model}@{version}"


def split_version(name: str) -> tuple[str, int | None]:
    """The model and the version of a name that `version_name` makes; any other name, and None."""
    model, at, version = name.rpartition("@")
    return (model, int(version)) if at and model and version.isascii() and version.isdigit() else (name, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFeatures:
    """Features of a request that decide which model answers it."""

    prompt_tokens: int = 0  # about so many
    max_output_tokens: int | None = None  # None: the request does not say
    tools: bool = False
    reasoning_effort: str | None = None
    batch: bool = False  # whether it runs in the batch tier


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSubject:
    """Tenant, user and session of a request. Empty: not known."""

    organization: str = ""
    project: str = ""
    key: str = ""
    user: str = ""  # the client's name of its own user
    session: str = ""  # the client's name of its session
    request: str = ""  # the request's id


@dataclass(frozen=True, slots=True)
class ModelChoice:
    model: str
    reason: Literal["pin", "rule", "weight"]


def choose_model(
    route: RouteConfig, subject: RequestSubject, features: RequestFeatures, predict_ttft: PredictTtft
) -> ModelChoice:
    """The model that a request for a route's name is sent to."""
    pinned = _pinned(route, subject)
    if pinned is not None:
        return ModelChoice(pinned, "pin")
    weighted = choose_target(route.name, route.targets, sticky_unit(route, subject))
    for rule in route.rules:
        if _holds(rule, features, weighted, predict_ttft):
            return ModelChoice(rule.model, "rule")
    return ModelChoice(weighted, "weight")


def choose_target(salt: str, targets: Sequence[TargetConfig], unit: str) -> str:
    """The target of a unit: the same unit gets the same one for as long as the weights stay. When one target's weight
    grows, units only move to that one, when it shrinks only away from it (weighted rendezvous hashing: Schindelhauer
    and Schomaker 2005). `salt` makes the assignments of several routes independent."""

    def cost(target: TargetConfig) -> float:
        if not target.weight:
            return math.inf
        uniform = (xxh3_64_intdigest(f"{salt}\0{target.model}\0{unit}".encode()) + 0.5) / _RANGE
        return -math.log(uniform) / target.weight

    return min(targets, key=lambda target: (cost(target), target.model)).model


def sticky_unit(route: RouteConfig, subject: RequestSubject) -> str:
    """Key that stays with one target; users of the same name differ between tenants."""
    whose = ("project", subject.project)
    units = {
        "request": [("request", subject.request)],
        "session": [("session", subject.session), ("user", subject.user), ("key", subject.key), whose],
        "user": [("user", subject.user), ("key", subject.key), whose],
        "key": [("key", subject.key), whose],
        "project": [whose],
    }[route.sticky]
    kind, name = next(((kind, name) for kind, name in units if name), whose)
    return "\0".join((subject.project, kind, name))


def is_shadowed(route: RouteConfig, request_id: str) -> bool:
    """Whether a request is copied to the route's shadow."""
    if route.shadow is None:
        return False
    return xxh3_64_intdigest(f"{route.name}\0shadow\0{request_id}".encode()) / _RANGE < route.shadow.share


def next_fallback(
    reason: FallbackReason,
    owners: Sequence[str],
    ladders: Mapping[str, Sequence[FallbackConfig]],
    tried: Collection[str],
) -> str | None:
    """The next target after a model could not begin. `owners`: names whose ladders count, in this order: the model's,
    then those of what it stands for."""
    steps = (step for owner in owners for step in ladders.get(owner, ()))
    return next((step.model for step in steps if reason in step.on and step.model not in tried), None)


def _pinned(route: RouteConfig, subject: RequestSubject) -> str | None:
    for kind in ("key", "project", "organization"):
        holder = getattr(subject, kind)
        for pin in route.pins:
            if holder and getattr(pin, kind) == holder:
                return pin.model
    return None


def _holds(rule: RuleConfig, features: RequestFeatures, otherwise: str, predict_ttft: PredictTtft) -> bool:
    """Whether all conditions of a rule hold; the costly one is looked at last."""
    if rule.max_prompt_tokens is not None and features.prompt_tokens > rule.max_prompt_tokens:
        return False
    if rule.max_output_tokens is not None and (features.max_output_tokens or math.inf) > rule.max_output_tokens:
        return False
    if rule.batch is not None and rule.batch != features.batch:
        return False
    if rule.tools is not None and rule.tools != features.tools:
        return False
    if rule.reasoning_effort is not None and (features.reasoning_effort or "medium") not in rule.reasoning_effort:
        return False
    if rule.predicted_ttft_above_s is not None:
        predicted = predict_ttft(otherwise)
        return predicted is not None and predicted > rule.predicted_ttft_above_s
    return True
