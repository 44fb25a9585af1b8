"""Rollouts: the state that the leader writes, and the samples and commands that the others leave."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.models import RolloutSamples, StoredRollout
from kvarn.store.repositories.queries import insert
from kvarn.store.repositories.tenants.audited_changes import AuditedChange


async def list_rollouts(session: AsyncSession) -> Sequence[StoredRollout]:
    return (await session.scalars(select(StoredRollout).order_by(StoredRollout.model))).all()


async def save_rollout(
    session: AsyncSession,
    model: str,
    state: dict[str, Any],
    now: int,
    *,
    candidate: tuple[int, float] | None = None,
) -> None:
    """Write the state of a rollout; commands stay. `candidate`: the version that runs beside the one that serves, and
    the share of the requests for which it needs replicas."""
    version, share = candidate or (None, None)
    values = {"state": state, "changed_at": now, "candidate_version": version, "candidate_share": share}
    statement = insert(session, StoredRollout).values(model=model, **values)
    await session.execute(statement.on_conflict_do_update(index_elements=["model"], set_=values))


async def delete_rollout(session: AsyncSession, row: StoredRollout) -> None:
    """Delete a rollout, unless another one has taken its place meanwhile."""
    same = (StoredRollout.model == row.model) & (StoredRollout.changed_at == row.changed_at)
    await session.execute(delete(StoredRollout).where(same))


async def take_command(session: AsyncSession, model: str, command: str) -> None:
    """Remove a command that was carried out, unless another one has come."""
    same = (StoredRollout.model == model) & (StoredRollout.command == command)
    await session.execute(update(StoredRollout).where(same).values(command=None, commanded_by=None))


async def leave_command(change: AuditedChange, model: str, command: str) -> bool:
    """Leave a command for the leader; returns whether the model has a rollout."""
    values = {"command": command, "commanded_by": change.actor.name[:256]}
    statement = update(StoredRollout).where(StoredRollout.model == model).values(values)
    found = await change.session.execute(statement.returning(StoredRollout.model))
    return found.scalar_one_or_none() is not None


def note_rollout(change: AuditedChange, model: str, action: str, **detail: Any) -> None:
    change.record(f"rollout.{action}", DEFAULT_ORGANIZATION, model, **detail)


def add_samples(session: AsyncSession, model: str, began: float, samples: list[Any]) -> None:
    session.add(RolloutSamples(model=model, began=began, samples=samples))


async def list_samples(session: AsyncSession) -> Sequence[RolloutSamples]:
    return (await session.scalars(select(RolloutSamples).order_by(RolloutSamples.id))).all()


async def delete_samples(session: AsyncSession, ids: Collection[int]) -> None:
    await session.execute(delete(RolloutSamples).where(RolloutSamples.id.in_(ids)))
