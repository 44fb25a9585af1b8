"""From rollouts to routes: which names of clients are shared between two versions, and how."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kvarn.catalog.model_table import ModelTable
from kvarn.config.routes import FallbackConfig, RouteConfig, ShadowConfig, TargetConfig
from kvarn.rollouts.rollout import Phase, Rollout

_MAX_COPIES = 16


def rollout_routes(
    rollouts: Iterable[Rollout], configured: Mapping[str, RouteConfig], models: ModelTable
) -> dict[str, tuple[RouteConfig, Rollout]]:
    """The routes of rollouts by their names, each with its rollout. What the new version cannot begin, the stable one
    answers; where that is not ready either, whatever version is."""
    routes = {}
    for rollout in rollouts:
        if rollout.versions is not None:
            names = _version_names(rollout, models)
        elif rollout.phase is Phase.ROLLED_BACK and not rollout.stable_promoted:
            continue  # what the configuration says holds again
        else:
            served = models.named(rollout.model)
            names = ((name, "") for name in (rollout.model, *(() if served is None else served.config.aliases)))
        for name, adapter in names:
            routes[name] = _route(name, rollout, f":{adapter}" if adapter else "", configured.get(name)), rollout
    return routes


def hold_back(rollouts: Iterable[Rollout], models: ModelTable) -> None:
    """Have versions that are rolled out answer nothing but what their rollouts give them. One that is given up stays
    held back until it is gone."""
    for rollout in rollouts:
        candidate = None if rollout.versions is None else models.named(rollout.candidate)
        if candidate is not None and rollout.phase is not Phase.ROLLED_BACK:
            candidate.held_back = rollout.phase is not Phase.PROMOTED


def _version_names(rollout: Rollout, models: ModelTable) -> Iterator[tuple[str, str]]:
    """Names by which clients reach a deployment, each with the adapter that it stands for. Once the rollout has ended
    the deployment's version says who answers."""
    stable, candidate = models.named(rollout.stable), models.named(rollout.candidate)
    if rollout.ended or stable is None or candidate is None:
        return
    for name in (stable.name, *stable.config.aliases):
        yield name, ""
    for adapter in stable.adapters:
        if adapter in candidate.adapters:
            yield adapter, adapter
            yield f"{stable.name}:{adapter}", adapter


def _route(name: str, rollout: Rollout, adapter: str, base: RouteConfig | None) -> RouteConfig:
    shares = rollout.shares
    targets = tuple(TargetConfig(model=version + adapter, weight=share) for version, share in shares.items())
    shadow = None
    if rollout.shadow_share:
        shadow = ShadowConfig(model=rollout.candidate + adapter, share=rollout.shadow_share, max_in_flight=_MAX_COPIES)
    fallback = [FallbackConfig(model=rollout.stable + adapter)]
    if rollout.versions is not None:
        fallback.append(FallbackConfig(model=rollout.model + adapter))
    if base is None:
        return RouteConfig(name=name, targets=targets, sticky="request", shadow=shadow, fallback=tuple(fallback))
    return base.model_copy(update={"targets": targets, "shadow": shadow, "fallback": (*fallback, *base.fallback)})
