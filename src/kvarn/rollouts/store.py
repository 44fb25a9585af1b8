"""Rollouts in the database, and the lease of the leader."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import msgspec

from kvarn.rollouts.rollout import Rollout, RolloutPhase
from kvarn.rollouts.samples import RolloutSample
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.ids import new_id
from kvarn.store.models import StoredRollout
from kvarn.store.repositories import leases
from kvarn.store.repositories import rollouts as stored
from kvarn.store.repositories.deployments import promote

_LEASE = "rollouts"
_LEASE_S = 15.0

log = logging.getLogger(__name__)


class StoredRow(NamedTuple):
    rollout: Rollout
    state: dict[str, Any]
    command: str | None
    commanded_by: str
    candidate_version: int | None
    """The deployment's version that has replicas for it."""


class RolloutStore:
    """The rollouts of the database, as one process reads and writes them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._holder = new_id("gateway-")
        self._held = False
        self._renew_at = 0.0
        self._known: dict[str, Any] = {}
        self._candidates: dict[str, tuple[int, float] | None] = {}
        """Versions and shares as last read or written, by model."""
        self._counted: dict[str, list[int]] = {}  # samples that are counted and not deleted yet, by model
        self._undeleted: set[str] = set()

    async def read(self) -> list[StoredRow]:
        async with self._store.reading() as session:
            found = await stored.list_rollouts(session)
        rows = [row for row in found if row.state.get("versions") is not None]
        for row in found:
            if row not in rows:
                await self._end_between_models(row)
        for row in rows:
            version, share = row.candidate_version, row.candidate_share
            self._candidates[row.model] = None if version is None or share is None else (version, share)
        return [
            StoredRow(
                msgspec.convert(row.state, Rollout),
                row.state,
                row.command,
                row.commanded_by or "",
                row.candidate_version,
            )
            for row in rows
        ]

    async def _end_between_models(self, row: StoredRollout) -> None:
        """Delete a rollout between two served models, which an earlier Kvarn began and none can carry on."""
        try:
            async with self._store.transaction() as session:
                await stored.delete_rollout(session, row)
        except StoreAwayError as error:
            if row.model not in self._undeleted:  # tried again by each read
                log.warning("rollout between two served models of %s cannot be deleted yet: %s", row.model, error)
            self._undeleted.add(row.model)
            return
        log.warning(
            "rollout between two served models ended: %s answers requests for its own name again. Deploy a version of "
            "it with `kvarn deploy --canary`, or share its requests by a route",
            row.model,
            extra={name: row.state.get(name) for name in ("stable", "candidate", "phase")},
        )

    def is_new(self, row: StoredRow) -> bool:
        """Whether another process has written it since it was last noted or written here."""
        return bool(self._known.get(row.rollout.model) != row.state)

    def note(self, row: StoredRow) -> None:
        self._known[row.rollout.model] = row.state

    async def save(self, rollout: Rollout, now: float) -> bool:
        """Write a rollout at Unix second `now` if it has changed since it was last read or written; returns whether it
        had. A promotion of the deployment and the deletion of counted samples are in the same transaction."""
        model, before = rollout.model, self._known.get(rollout.model)
        state = msgspec.json.decode(msgspec.json.encode(rollout))  # as the database gives it: tuples are lists
        candidate, counted = rollout.wanted(now), list(self._counted.get(model, []))
        changed = before != state or self._candidates.get(model, candidate) != candidate
        if changed or counted:
            async with self._store.transaction() as session:
                await stored.save_rollout(session, model, state, int(now), candidate=candidate)
                await stored.delete_samples(session, counted)
                is_news = before is None or before["phase"] != rollout.phase
                if rollout.phase is RolloutPhase.PROMOTED and is_news:
                    await promote(session, model, *rollout.versions, int(now), rollout.log[-1].by or "rollout")
            self._known[model], self._candidates[model] = state, candidate
            self._counted[model] = [each for each in self._counted.get(model, []) if each not in counted]
        return changed

    async def leave_samples(self, model: str, began: float, samples: list[RolloutSample]) -> None:
        async with self._store.transaction() as session:
            stored.add_samples(session, model, began, msgspec.to_builtins(samples))

    async def read_samples(self) -> list[tuple[str, float, list[RolloutSample]]]:
        """Samples that were left and not counted yet: model, beginning of the rollout, samples. They are deleted when
        the rollout is written."""
        async with self._store.reading() as session:
            rows = await stored.list_samples(session)
        known = {each for counted in self._counted.values() for each in counted}
        new = [row for row in rows if row.id not in known]
        for row in new:
            self._counted.setdefault(row.model, []).append(row.id)
        return [(row.model, row.began, msgspec.convert(row.samples, list[RolloutSample])) for row in new]

    async def done(self, row: StoredRow) -> None:
        if row.command is not None:
            async with self._store.transaction() as session:
                await stored.take_command(session, row.rollout.model, row.command)

    async def hold_lease(self, now: float) -> bool:
        """Take the lease, or renew it after a third of its length; returns whether it is held at Unix second `now`."""
        if now >= self._renew_at:
            self._held = await leases.take(self._store, _LEASE, self._holder, _LEASE_S)
            self._renew_at = now + _LEASE_S / 3
        return self._held

    async def give_lease_back(self) -> None:
        if self._held:
            await leases.give_back(self._store, _LEASE, self._holder)
        self._held, self._renew_at = False, 0.0
