"""Rollouts: the state that whoever judges one writes, and the commands that others leave for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.models import StoredRollout
from kvarn.store.repositories.dialect import insert
from kvarn.store.repositories.tenants.audited_changes import AuditedChange


async def list_rollouts(session: AsyncSession) -> Sequence[StoredRollout]:
    """The latest of each model."""
    return (await session.scalars(select(StoredRollout).order_by(StoredRollout.model))).all()


async def save_rollout(session: AsyncSession, model: str, state: dict[str, Any], now: int) -> None:
    """Write what became of a rollout; commands stay."""
    values = {"state": state, "changed_at": now}
    statement = insert(session, StoredRollout).values(model=model, **values)
    await session.execute(statement.on_conflict_do_update(index_elements=["model"], set_=values))


async def take_command(session: AsyncSession, model: str, command: str) -> None:
    """A command was carried out, unless another has come meanwhile."""
    same = (StoredRollout.model == model) & (StoredRollout.command == command)
    await session.execute(update(StoredRollout).where(same).values(command=None, commanded_by=None))


async def leave_command(change: AuditedChange, model: str, command: str) -> bool:
    """Leave a command for whoever judges the rollout; False where the model has had none."""
    values = {"command": command, "commanded_by": change.actor.name[:256]}
    statement = update(StoredRollout).where(StoredRollout.model == model).values(values)
    found = await change.session.execute(statement.returning(StoredRollout.model))
    return found.scalar_one_or_none() is not None


def note_rollout(change: AuditedChange, model: str, action: str, **detail: Any) -> None:
    """Write into the audit log what an administrator did."""
    change.record(f"rollout.{action}", DEFAULT_ORGANIZATION, model, **detail)
