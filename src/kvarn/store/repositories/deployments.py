"""Deployments: versions are added and never changed; which one serves, and with how many replicas, is."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.engine import Store
from kvarn.store.errors import NotFoundError
from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.models import Deployment, DeploymentVersion, StoredRollout, VersionNumber
from kvarn.store.repositories.tenants.audited_changes import AuditedChange


class UnknownDeploymentError(NotFoundError):
    """There is no such deployment or version; the message says what there is."""


async def list_deployments(session: AsyncSession) -> list[Deployment]:
    return list((await session.scalars(select(Deployment).order_by(Deployment.model))).all())


async def get_version(session: AsyncSession, model: str, version: int) -> DeploymentVersion:
    found = await session.get(DeploymentVersion, (model, version))
    if found is None:
        raise UnknownDeploymentError(f"{model!r} has no version {version}")
    return found


async def list_versions(session: AsyncSession, model: str) -> list[DeploymentVersion]:
    query = select(DeploymentVersion).where(DeploymentVersion.model == model)
    return list((await session.scalars(query.order_by(DeploymentVersion.version.desc()))).all())


async def current_versions(session: AsyncSession) -> list[tuple[Deployment, DeploymentVersion | None]]:
    """Each deployment with the version that serves; None: the configuration's."""
    same = (DeploymentVersion.model == Deployment.model) & (DeploymentVersion.version == Deployment.version)
    query = select(Deployment, DeploymentVersion).outerjoin(DeploymentVersion, same).order_by(Deployment.model)
    return [(deployment, version) for deployment, version in (await session.execute(query)).all()]


async def read_desired(store: Store) -> list[dict[str, Any]]:
    """Desired state: model, version, replicas, spec, fingerprints and adapters of each deployment; no spec: the
    configuration's. While a version is rolled out, `candidate` has its version, spec and fingerprints, and the share of
    the requests that it shall be able to answer.
    """
    async with store.reading() as session:
        rows: list[dict[str, Any]] = [
            {
                "model": each.model,
                "version": each.version,
                "replicas": each.replicas,
                "spec": version and version.spec,
                "fingerprints": version and version.fingerprints,
                "adapters": each.adapters or [],
            }
            for each, version in await current_versions(session)
        ]
        candidates = {
            model: {
                "version": version.version,
                "share": share,
                "spec": version.spec,
                "fingerprints": version.fingerprints,
            }
            for model, share, version in (await session.execute(_CANDIDATES)).all()
        }
    for row in rows:
        candidate = candidates.get(row["model"])
        if candidate is not None and candidate["version"] != row["version"]:  # until it is promoted
            row["candidate"] = candidate
    return rows


_CANDIDATES = select(StoredRollout.model, StoredRollout.candidate_share, DeploymentVersion).join(
    DeploymentVersion,
    (DeploymentVersion.model == StoredRollout.model) & (DeploymentVersion.version == StoredRollout.candidate_version),
)


async def deploy(change: AuditedChange, model: str, spec: dict[str, Any], *, is_configured: bool = False) -> Deployment:
    """Add a version, which serves from now on. One that says the same as the one that serves is not added again.
    `is_configured`: the configuration names the model, so there is a version 0 to go back to."""
    found, version = await add_version(change, model, spec)
    if version != found.version:
        _point(change, found, version, found.version or (0 if is_configured else None))
    return found


async def add_version(change: AuditedChange, model: str, spec: dict[str, Any]) -> tuple[Deployment, int]:
    """Add a version that does not serve yet; the number of the one that serves where that says the same."""
    session = change.session
    found = await session.get(Deployment, model, with_for_update=True)
    if found is None:
        found = Deployment(model=model, version=0, changed_at=change.now, changed_by=change.actor.name[:256])
        session.add(found)
        await session.flush()
    elif found.version and (await get_version(session, model, found.version)).spec == spec:
        return found, found.version
    version = await _next_version(session, model)
    session.add(
        DeploymentVersion(
            model=model, version=version, spec=spec, created_at=change.now, created_by=change.actor.name[:256]
        )
    )
    change.record("deployment.created", DEFAULT_ORGANIZATION, model, version=version)
    return found, version


async def _next_version(session: AsyncSession, model: str) -> int:
    numbers = await session.get(VersionNumber, model, with_for_update=True)
    if numbers is None:
        numbers = VersionNumber(model=model, last_version=0)
        session.add(numbers)
    numbers.last_version += 1
    return numbers.last_version


async def promote(session: AsyncSession, model: str, stable: int, candidate: int, now: int, by: str) -> None:
    """Have the candidate of a rollout serve in place of the stable version, where that still serves."""
    serves = (Deployment.model == model) & (Deployment.version == stable)
    values = {"version": candidate, "previous_version": stable, "changed_at": now, "changed_by": by[:256]}
    await session.execute(update(Deployment).where(serves).values(values))


async def bind_version(store: Store, model: str, version: int, fingerprints: dict[str, Any]) -> None:
    """Note which files a version was deployed with; nothing changes that afterwards."""
    async with store.transaction() as session:
        found = await session.get(DeploymentVersion, (model, version), with_for_update=True)
        if found is not None and found.fingerprints is None:
            found.fingerprints = fingerprints


async def keep_adapter(store: Store, model: str, adapter: dict[str, Any], by: str) -> None:
    """Add an adapter that was loaded at run time, in place of one of the same name. A model of the configuration gets a
    deployment by this."""
    async with store.transaction() as session:
        found = await session.get(Deployment, model, with_for_update=True)
        if found is None:
            found = Deployment(model=model, version=0, changed_at=int(store.now()), changed_by=by[:256])
            session.add(found)
        others = [each for each in found.adapters or [] if each["name"] != adapter["name"]]
        found.adapters = [*others, adapter]


async def drop_adapter(store: Store, model: str, name: str) -> None:
    async with store.transaction() as session:
        found = await session.get(Deployment, model, with_for_update=True)
        if found is not None:
            found.adapters = [each for each in found.adapters or [] if each["name"] != name]


async def kept_adapters(store: Store, model: str) -> list[dict[str, Any]]:
    async with store.reading() as session:
        found = await session.get(Deployment, model)
        return [] if found is None else list(found.adapters or [])


async def scale(change: AuditedChange, model: str, replicas: int | None, *, is_configured: bool = False) -> Deployment:
    """Set the number of replicas; None: as the version says. A model of the configuration gets a deployment by this."""
    found = await change.session.get(Deployment, model, with_for_update=True) if is_configured else None
    if found is None and is_configured:
        found = Deployment(model=model, version=0)
        change.session.add(found)
    found = found or await _locked(change, model)
    found.replicas = replicas
    _touch(change, found)
    change.record("deployment.scaled", DEFAULT_ORGANIZATION, model, replicas=replicas)
    return found


async def roll_back(change: AuditedChange, model: str, version: int | None = None) -> Deployment:
    """Have an earlier version serve again: the one that did before, or the one that is named. Rolling back once more
    undoes it."""
    found = await _locked(change, model)
    wanted = version if version is not None else found.previous_version
    if wanted is None:
        raise UnknownDeploymentError(f"{model!r} has had one version only: there is none to go back to")
    if wanted:
        await get_version(change.session, model, wanted)
    if wanted != found.version:
        _point(change, found, wanted, found.version)
        change.record("deployment.rolled_back", DEFAULT_ORGANIZATION, model, version=wanted)
    return found


async def delete_deployment(change: AuditedChange, model: str) -> None:
    await change.session.delete(await _locked(change, model))
    change.record("deployment.deleted", DEFAULT_ORGANIZATION, model)


async def _locked(change: AuditedChange, model: str) -> Deployment:
    found = await change.session.get(Deployment, model, with_for_update=True)
    if found is None:
        known = [each.model for each in await list_deployments(change.session)]
        raise UnknownDeploymentError(
            f"there is no deployment of {model!r}; there are: {', '.join(known) or 'none'}. "
            "A model of the configuration gets one by `kvarn deploy`."
        )
    return found


def _point(change: AuditedChange, deployment: Deployment, version: int, previous: int | None) -> None:
    deployment.previous_version = previous
    deployment.version = version
    _touch(change, deployment)


def _touch(change: AuditedChange, deployment: Deployment) -> None:
    deployment.changed_at, deployment.changed_by = change.now, change.actor.name[:256]
