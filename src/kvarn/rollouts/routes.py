"""The routes that share requests between the two versions of a rollout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kvarn.catalog.model_table import ModelTable
from kvarn.config.routes import FallbackConfig, RouteConfig, ShadowConfig, TargetConfig
from kvarn.rollouts.rollout import Rollout, RolloutPhase

_MAX_COPIES = 16


def rollout_routes(
    rollouts: Iterable[Rollout], configured: Mapping[str, RouteConfig], models: ModelTable
) -> dict[str, tuple[RouteConfig, Rollout]]:
    """The routes of rollouts by their names, each with its rollout. The stable version answers what the new one cannot
    begin; where that is not ready either, any version that is."""
    return {
        name: (route_of(name, rollout, f":{adapter}" if adapter else "", configured.get(name)), rollout)
        for rollout in rollouts
        for name, adapter in _version_names(rollout, models)
    }


def hold_back(rollouts: Iterable[Rollout], models: ModelTable) -> None:
    """Let candidates answer only what their rollouts give them. One that was given up stays held back until it is
    gone."""
    for rollout in rollouts:
        candidate = models.named(rollout.candidate)
        if candidate is not None and rollout.phase is not RolloutPhase.ROLLED_BACK:
            candidate.held_back = rollout.phase is not RolloutPhase.PROMOTED


def _version_names(rollout: Rollout, models: ModelTable) -> Iterator[tuple[str, str]]:
    """Names by which clients reach a deployment, each with the adapter that it stands for. After the rollout's end the
    deployment's version answers."""
    stable, candidate = models.named(rollout.stable), models.named(rollout.candidate)
    if rollout.ended or stable is None or candidate is None:
        return
    for name in (stable.name, *stable.config.aliases):
        yield name, ""
    for adapter in stable.adapters:
        if adapter in candidate.adapters:
            yield adapter, adapter
            yield f"{stable.name}:{adapter}", adapter


def route_of(name: str, rollout: Rollout, adapter: str = "", base: RouteConfig | None = None) -> RouteConfig:
    """The route of one name while the rollout is under way. `adapter`: as it follows a version's name; `base`: the
    configured route of this name."""
    shares = rollout.shares
    targets = tuple(TargetConfig(model=version + adapter, weight=share) for version, share in shares.items())
    shadow = None
    if rollout.shadow_share:
        shadow = ShadowConfig(model=rollout.candidate + adapter, share=rollout.shadow_share, max_in_flight=_MAX_COPIES)
    fallback = tuple(FallbackConfig(model=each + adapter) for each in (rollout.stable, rollout.model))
    if base is None:
        return RouteConfig(name=name, targets=targets, sticky="request", shadow=shadow, fallback=fallback)
    return base.model_copy(update={"targets": targets, "shadow": shadow, "fallback": (*fallback, *base.fallback)})
