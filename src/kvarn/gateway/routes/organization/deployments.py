"""`/v1/organization/deployments`: which models the server has, in which version, with how many replicas. Ours, for
platform administrators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from pydantic import ValidationError

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.model import ModelConfig
from kvarn.config.rollout import RolloutConfig
from kvarn.fleet.desired import changed, model_of, spec_of
from kvarn.gateway.dependencies import ADMINISTRATION, AdminContext, PlatformAdminDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import QueryModel
from kvarn.gateway.routes.rollouts import give_command, rollout_config
from kvarn.gateway.state import Gateway
from kvarn.rollouts.controller import RolloutRefusedError
from kvarn.rollouts.rollout import Rollout
from kvarn.routing.model_choice import split_version
from kvarn.store.models import Deployment, DeploymentVersion
from kvarn.store.repositories import deployments
from kvarn.store.repositories.rollouts import note_rollout, save_rollout
from kvarn.store.repositories.tenants.audited_changes import AuditedChange
from kvarn.text.chat_template import read_template
from kvarn.text.errors import TextError
from kvarn.text.local_path import local_path
from kvarn.wire.openai.errors import ApiError, invalid_request, unavailable
from kvarn.wire.openai.lists import DeletedObject, ListObject
from kvarn.wire.openai.organization.deployments import (
    DecisionObject,
    DeploymentCreate,
    DeploymentObject,
    DeploymentRollback,
    DeploymentRollout,
    DeploymentScale,
    DeploymentVersionObject,
    ReplicaObject,
)

router = json_router("/v1/organization/deployments", "administration", ADMINISTRATION)


class ModelQuery(QueryModel):
    model: str


@router.get("", summary="List deployments")
async def list_deployments(admin: PlatformAdminDep) -> ListObject[DeploymentObject]:
    """Every model that is served or shall be, with its replicas as the answering gateway process knows them."""
    async with admin.reading() as session:
        found = {each.model: (each, version) for each, version in await deployments.current_versions(session)}
    names = [*found, *(model.name for model in admin.gateway.models if model.name not in found)]
    data = [_object(admin.gateway, name, *found.get(name, (None, None))) for name in names]
    first, last = (names[0], names[-1]) if names else ("", "")
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": False}


@router.post("", summary="Deploy a version of a model")
async def create_deployment(admin: PlatformAdminDep, body: DeploymentCreate) -> DeploymentObject:
    """Add a version of a model, new or known, and have it serve: its replicas take the place of the others, a few at a
    time (`update`). It keeps the settings of the version that serves where `settings` has no others. Nothing is changed
    where the version cannot be started: what serves goes on, and `problem` says why."""
    _refuse_while_rolled_out(admin.gateway, body.model)
    config = None if body.rollout is None else rollout_config(admin.gateway, body.rollout, "rollout")
    rollout = None
    async with admin.audited_change() as change:
        current = {each.model: version for each, version in await deployments.current_versions(change.session)}
        model = _changed(admin.gateway, current.get(body.model), body)
        others = {each.name: each.config.aliases for each in admin.gateway.models}
        others |= {name: tuple(version.spec.get("aliases", ())) for name, version in current.items() if version}
        _check_names(model, others)
        configured = any(each.name == body.model and not each.version for each in admin.gateway.models)
        if config is None:
            deployment = await deployments.deploy(change, body.model, spec_of(model), is_configured=configured)
        else:
            await _check_room(admin.gateway, model, body)
            deployment, rollout = await _roll_out(admin, change, model, config)
        if body.replicas is not None:
            await deployments.scale(change, body.model, body.replicas)
    if rollout is not None:
        admin.gateway.control.rollouts.take(rollout)
        admin.gateway.control.rollouts.wake()
    return await _show(admin, deployment)


async def _roll_out(
    admin: AdminContext, change: AuditedChange, model: ModelConfig, config: RolloutConfig
) -> tuple[Deployment, Rollout]:
    """Add a version, and have it take over step by step."""
    serving = admin.gateway.models.named(model.name)
    if serving is None:
        raise invalid_request(f"{model.name!r} is not served yet: deploy it without a rollout first", "rollout")
    spec = spec_of(model)
    deployment, version = await deployments.add_version(change, model.name, spec)
    if version == deployment.version or (serving.version, spec_of(serving.config)) == (deployment.version, spec):
        why = f"version {deployment.version} of {model.name!r}, which serves, has the same settings"
        raise invalid_request(why, "settings")
    try:
        rollout = admin.gateway.control.rollouts.begin(
            model.name, deployment.version, version, config, admin.actor.name
        )
    except RolloutRefusedError as error:
        raise ApiError(409, str(error), code="conflict") from None
    note_rollout(change, model.name, "started", candidate=rollout.candidate)
    candidate = version, rollout.next_share
    await save_rollout(change.session, model.name, msgspec.to_builtins(rollout), change.now, candidate=candidate)
    return deployment, rollout


async def _check_room(gateway: Gateway, model: ModelConfig, body: DeploymentCreate) -> None:
    """Refuse a rollout whose last step cannot be reached: both versions have all their replicas then."""
    served = gateway.models.named(model.name)
    replicas = body.replicas or (0 if served is None else len(served.replicas))
    try:
        missing = "" if gateway.control.fleet is None else await gateway.control.fleet.lacks_room(model, replicas)
    except TextError as error:
        raise invalid_request(str(error), "settings.path") from None
    if missing:
        raise ApiError(
            409,
            f"The new version would run with {replicas} replicas beside those that serve, and {missing}. Leave "
            "`rollout` (`--canary`) out to have the replicas replaced a few at a time, or have fewer (`kvarn scale`).",
            code="no_room",
        )


def _refuse_while_rolled_out(gateway: Gateway, model: str) -> None:
    try:
        gateway.control.rollouts.refuse_under_way(model)
    except RolloutRefusedError as error:
        raise ApiError(409, str(error), code="conflict") from None


@router.post("/scale", summary="Set the number of replicas")
async def scale_deployment(admin: PlatformAdminDep, body: DeploymentScale) -> DeploymentObject:
    """Have a model served by more replicas or by fewer; those that leave finish their requests first. A model of the
    configuration gets a deployment by this."""
    async with admin.audited_change() as change:
        served = next((each for each in admin.gateway.models if each.name == body.model), None)
        is_configured = served is not None and not served.version
        deployment = await deployments.scale(change, body.model, body.replicas, is_configured=is_configured)
    return await _show(admin, deployment)


@router.post("/rollback", summary="Have an earlier version serve")
async def roll_back_deployment(admin: PlatformAdminDep, body: DeploymentRollback) -> DeploymentObject:
    """Have the version serve that did before, or the one that is named. While a version is rolled out, the one that
    serves answers all requests again at once."""
    rollout = admin.gateway.control.rollouts.rollouts.get(body.model)
    if rollout is not None and not rollout.ended:
        if body.version not in (None, rollout.versions[0]):
            _refuse_while_rolled_out(admin.gateway, body.model)
        await give_command(admin, body.model, "rollback")
        async with admin.reading() as session:
            found = await deployments.list_deployments(session)
        return await _show(admin, next(each for each in found if each.model == body.model))
    async with admin.audited_change() as change:
        deployment = await deployments.roll_back(change, body.model, body.version)
    return await _show(admin, deployment)


@router.get("/versions", summary="List a model's versions")
async def list_versions(admin: PlatformAdminDep, query: ModelQuery) -> ListObject[DeploymentVersionObject]:
    """All versions of a model, newest first. A version is never changed."""
    async with admin.reading() as session:
        versions = await deployments.list_versions(session, query.model)
    data: list[DeploymentVersionObject] = [
        {
            "object": "deployment.version",
            "model": each.model,
            "version": each.version,
            "settings": each.spec,
            "fingerprints": each.fingerprints,
            "created_at": each.created_at,
            "created_by": each.created_by,
        }
        for each in versions
    ]
    ids = [str(each.version) for each in versions]
    first, last = (ids[0], ids[-1]) if ids else ("", "")
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": False}


@router.get("/decisions", summary="List what the autoscaler decided")
async def list_decisions(admin: PlatformAdminDep) -> ListObject[DecisionObject]:
    """Numbers of replicas that models got, and why, newest first; since the server's start, the last few hundred."""
    autoscaling, shared = admin.gateway.control.autoscaling, admin.gateway.control.shared
    if autoscaling is None and shared is not None and not shared.is_main:
        raise unavailable("Another process of this server looks after the fleet. Try again.", "not_here")
    ago, now = SYSTEM_CLOCK.now(), SYSTEM_CLOCK.time()
    data: list[DecisionObject] = [
        {
            "object": "deployment.decision",
            "model": model,
            "replicas": each.replicas,
            "reason": each.reason,
            "decided_at": round(now - (ago - each.now)),
        }
        for model, each in reversed(autoscaling.decisions if autoscaling is not None else ())
    ]
    return {"object": "list", "data": data, "first_id": "", "last_id": "", "has_more": False}


@router.delete("", summary="Delete a deployment")
async def delete_deployment(admin: PlatformAdminDep, query: ModelQuery) -> DeletedObject:
    """Delete a model's deployment and its versions. A model of the configuration is served as that says again, another
    no longer."""
    _refuse_while_rolled_out(admin.gateway, query.model)
    async with admin.audited_change() as change:
        await deployments.delete_deployment(change, query.model)
    _wake(admin.gateway)
    return DeletedObject(id=query.model, object="deployment.deleted")


def _changed(gateway: Gateway, version: DeploymentVersion | None, body: DeploymentCreate) -> ModelConfig:
    served = next((each for each in gateway.models if each.name == body.model), None)
    current = model_of(body.model, version.spec) if version is not None else served.config if served else None
    try:
        model = changed(current, body.model, body.settings)
        if model.chat_template is not None:  # its text: a file may change
            text = read_template(model.chat_template)
            model = model.model_copy(update={"chat_template": text}) if "{" in text else model
    except TextError as error:
        raise invalid_request(f"settings.chat_template: {error}", "settings.chat_template") from None
    except ValidationError as error:
        detail = error.errors()[0]
        where = ".".join(["settings", *(str(step) for step in detail["loc"])])
        raise invalid_request(f"{where}: {detail['msg']}", where) from None
    for name in ("disaggregation", "external"):
        if getattr(model, name) is not None:
            why = f"a model with {name!r} is configured on its server and cannot be deployed"
            raise invalid_request(why, f"settings.{name}")
    _check_paths(model)
    return model


def _check_paths(model: ModelConfig) -> None:
    """Refuse what no file can be called: whether something is there is told with the deployment (`problem`)."""
    paths = {"path": model.path, "tokenizer": model.tokenizer, "generation_config": model.generation_config}
    paths |= {f"adapters[{place}].path": adapter.path for place, adapter in enumerate(model.adapters)}
    paths["speculation.model"] = model.speculation.model
    for name, text in paths.items():
        try:
            local_path(text or "")
        except TextError as error:
            raise invalid_request(f"settings.{name}: {error}", f"settings.{name}") from None


def _check_names(model: ModelConfig, others: Mapping[str, Sequence[str]]) -> None:
    for other, aliases in others.items():
        taken = {model.name, *model.aliases} & {other, *aliases}
        if other != model.name and taken:
            raise ApiError(409, f"The name {min(taken)!r} belongs to the model {other!r}.", code="conflict")


async def _show(admin: AdminContext, deployment: Deployment) -> DeploymentObject:
    """The deployment after a change, which begins to be made so."""
    _wake(admin.gateway)
    async with admin.reading() as session:
        version = (
            await deployments.get_version(session, deployment.model, deployment.version) if deployment.version else None
        )
    return _object(admin.gateway, deployment.model, deployment, version)


def _wake(gateway: Gateway) -> None:
    if gateway.control.fleet is not None:
        gateway.control.fleet.wake()


def _object(
    gateway: Gateway, name: str, deployment: Deployment | None, version: DeploymentVersion | None
) -> DeploymentObject:
    served = next((model for model in gateway.models if model.name == name), None)
    versions = [] if served is None else served.all_versions
    observed = [
        ReplicaObject(replica=replica, version=each.version, state=str(client.state), stage=client.progress[0])
        for each in versions
        for replica, client in each.replicas.items()
    ]
    number = 0 if deployment is None else deployment.version
    rollout = gateway.control.rollouts.rollouts.get(name)
    settings = version.spec if version is not None else spec_of(served.config) if served is not None else {}
    wanted = None if deployment is None else deployment.replicas
    return {
        "object": "deployment",
        "model": name,
        "version": number,
        "previous_version": None if deployment is None else deployment.previous_version,
        "replicas": int(settings.get("replicas", 1)) if wanted is None else wanted,
        "ready": sum(each["state"] == "ready" and each["version"] == number for each in observed),
        "settings": settings,
        "changed_at": None if deployment is None else deployment.changed_at,
        "changed_by": None if deployment is None else deployment.changed_by,
        "problem": _problem(gateway, name),
        "rollout": None if rollout is None else _describe_rollout(rollout),
        "observed": observed,
    }


def _problem(gateway: Gateway, name: str) -> str | None:
    problems = {} if gateway.control.fleet is None else gateway.control.fleet.problems
    return next((problem for version, problem in problems.items() if split_version(version)[0] == name), None)


def _describe_rollout(rollout: Rollout) -> DeploymentRollout:
    return {
        "version": rollout.versions[1],
        "phase": rollout.phase.value,
        "share": rollout.shares[rollout.candidate],
        "reason": rollout.log[-1].reason,
    }
