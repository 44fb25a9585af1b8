"""Runs of evaluation sets: as their owners see them, and as the gateway that works on one does, under a lease."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import and_, case, func, or_, select, update

from kvarn.store.engine import Store
from kvarn.store.errors import ConflictError, NotFoundError
from kvarn.store.ids import is_id, new_id
from kvarn.store.models import EvaluationResult, EvaluationRun, EvaluationSet
from kvarn.store.owner import Owner, Principal
from kvarn.store.repositories.pages import Cursor, Page, read_page
from kvarn.store.repositories.queries import find_one, given_values, insert, owned_by
from kvarn.store.repositories.stored_bytes import ROW_BYTES, json_bytes, storing

RUN_OPEN = ("queued", "in_progress")
RUN_OVER = ("completed", "failed", "cancelled")
MAX_OPEN = 20
"""Runs of one organisation that may wait or be under way."""
MAX_ERRORS = 0.1
"""Share of items without an answer with which a run still counts."""
_SUMMED_RUNS = 1000
"""Newest completed runs that scores are made of, beside the pinned ones of their sets."""


async def create_run(
    store: Store, principal: Principal, of: EvaluationSet, version: int, total: int, model: str, settings: Any
) -> EvaluationRun:
    """Queue a run. Raises `ConflictError`: the organisation has `MAX_OPEN` that are not over."""
    counted = ROW_BYTES + json_bytes(settings)
    run = EvaluationRun(
        id=new_id("evalrun_"),
        organization_id=principal.organization_id,
        project_id=principal.project_id,
        counted_bytes=counted,
        set_id=of.id,
        set_name=of.name,
        set_version=version,
        key_id=principal.key_id,
        asked_model=model,
        model="",
        model_version="",
        settings=settings,
        status="queued",
        created_at=int(store.now()),
        total=total,
    )
    mine = EvaluationRun.organization_id == principal.organization_id, EvaluationRun.status.in_(RUN_OPEN)
    async with storing(store, principal.organization_id, counted) as session:
        if (await session.scalar(select(func.count()).where(*mine)) or 0) >= MAX_OPEN:
            raise ConflictError(f"{MAX_OPEN} evaluation runs wait or are under way: wait for one, or cancel it.")
        session.add(run)
    return run


async def read_run(store: Store, owner: Owner, set_id: str, run_id: str) -> EvaluationRun:
    missing = f"There is no evaluation run {run_id[:80]!r} of this set."
    if not is_id(run_id):
        raise NotFoundError(missing)
    query = owned_by(owner, EvaluationRun).where(EvaluationRun.id == run_id, EvaluationRun.set_id == set_id)
    async with store.reading() as session:
        return await find_one(session, query, missing)


async def list_runs(store: Store, owner: Owner, set_id: str, cursor: Cursor, model: str | None) -> Page[EvaluationRun]:
    query = owned_by(owner, EvaluationRun).where(EvaluationRun.set_id == set_id)
    if model is not None:
        query = query.where(or_(EvaluationRun.model == model, EvaluationRun.asked_model == model))
    async with store.reading() as session:
        return await read_page(session, query, cursor, (EvaluationRun.created_at, EvaluationRun.id))


async def list_results(store: Store, run_id: str, after: int, limit: int) -> list[EvaluationResult]:
    """Results of a run in the order of its items, behind the item `after`."""
    query = select(EvaluationResult).where(EvaluationResult.run_id == run_id, EvaluationResult.item > after)
    async with store.reading() as session:
        return list(await session.scalars(query.order_by(EvaluationResult.item).limit(limit)))


async def read_grades(store: Store, run_id: str) -> dict[int, tuple[float, bool]]:
    """Score and pass of each item that a run has a result of."""
    columns = EvaluationResult.item, EvaluationResult.score, EvaluationResult.passed
    async with store.reading() as session:
        rows = await session.execute(select(*columns).where(EvaluationResult.run_id == run_id))
        return {item: (score, passed) for item, score, passed in rows}


async def cancel_run(store: Store, owner: Owner, set_id: str, run_id: str) -> EvaluationRun:
    """End a run; the gateway that works on it hears of it when it renews its lease. One that is over stays as it is."""
    await read_run(store, owner, set_id, run_id)
    ended = {"status": "cancelled", "finished_at": int(store.now()), "leased_by": None, "leased_until": None}
    async with store.transaction() as session:
        open_one = EvaluationRun.id == run_id, EvaluationRun.status.in_(RUN_OPEN)
        await session.execute(update(EvaluationRun).where(*open_one).values(ended))
    return await read_run(store, owner, set_id, run_id)


async def claim_runs(
    store: Store, holder: str, lease_s: float, count: int, last: Collection[str] = ()
) -> list[EvaluationRun]:
    """Take up to `count` runs that no gateway works on, oldest first; those of the organisations `last` come last."""
    now = int(store.now())
    free = and_(
        EvaluationRun.status.in_(RUN_OPEN),
        or_(EvaluationRun.leased_until.is_(None), EvaluationRun.leased_until <= now),
    )
    turn = case((EvaluationRun.organization_id.in_(last), 1), else_=0)
    waiting = select(EvaluationRun.id).where(free).order_by(turn, EvaluationRun.created_at, EvaluationRun.id)
    async with store.reading() as session:  # mostly there is none: finding that out must not block writers
        ids = list(await session.scalars(waiting.limit(count)))
    claimed: list[EvaluationRun] = []
    if not ids:
        return claimed
    values = {
        "status": "in_progress",
        "leased_by": holder,
        "leased_until": now + int(lease_s),
        "started_at": func.coalesce(EvaluationRun.started_at, now),
    }
    async with store.transaction() as session:
        for run_id in ids:
            statement = update(EvaluationRun).where(EvaluationRun.id == run_id, free).values(values)
            run = (await session.execute(statement.returning(EvaluationRun))).scalar_one_or_none()
            if run is not None:
                claimed.append(run)
    return claimed


async def renew_runs(store: Store, holder: str, run_ids: Collection[str], lease_s: float) -> set[str]:
    """Keep working on these; those that still are the holder's: others were cancelled, deleted or taken over."""
    if not run_ids:
        return set()
    mine = EvaluationRun.id.in_(run_ids), EvaluationRun.leased_by == holder, EvaluationRun.status == "in_progress"
    until = {"leased_until": int(store.now()) + int(lease_s)}
    async with store.transaction() as session:
        statement = update(EvaluationRun).where(*mine).values(until).returning(EvaluationRun.id)
        return set(await session.scalars(statement))


async def release_run(store: Store, holder: str, run_id: str) -> None:
    async with store.transaction() as session:
        mine = EvaluationRun.id == run_id, EvaluationRun.leased_by == holder
        await session.execute(update(EvaluationRun).where(*mine).values(leased_by=None, leased_until=None))


async def add_results(
    store: Store, holder: str, run_id: str, results: Sequence[Mapping[str, Any]], *, model: str, model_version: str
) -> bool:
    """Keep results of a run, once for each item, and what answered it so far; False where it is no longer the holder's.
    They have been made: they are kept however much the organisation has stored."""
    size = sum(json_bytes(each["output"], each["grades"]) for each in results)
    mine = EvaluationRun.id == run_id, EvaluationRun.leased_by == holder, EvaluationRun.status == "in_progress"
    changes = {
        "answered": EvaluationRun.answered + len(results),
        "counted_bytes": EvaluationRun.counted_bytes + size,
        "model": model,
        "model_version": model_version,
    }
    async with store.transaction() as session:
        held = await session.scalar(update(EvaluationRun).where(*mine).values(changes).returning(EvaluationRun.id))
        if held is None:
            return False
        rows = [{"run_id": run_id, **each} for each in results]
        await session.execute(insert(session, EvaluationResult).on_conflict_do_nothing(), rows)
    return True


async def finish_run(store: Store, holder: str, run_id: str, problem: str | None = None) -> bool:
    """Sum the results up and end the run; False where it is no longer the holder's. It has failed, and no score, where
    there is a `problem`, or where more than `MAX_ERRORS` of its items could not be answered."""
    errors = func.sum(case((EvaluationResult.error.is_not(None), 1), else_=0))
    passed = func.sum(case((EvaluationResult.passed, 1), else_=0))
    sums = select(func.count(), passed, errors, func.avg(EvaluationResult.score))
    mine = EvaluationRun.id == run_id, EvaluationRun.leased_by == holder, EvaluationRun.status == "in_progress"
    async with store.transaction() as session:
        row = (await session.execute(sums.where(EvaluationResult.run_id == run_id))).one()
        answered, passes, faults, score = int(row[0]), int(row[1] or 0), int(row[2] or 0), row[3]
        if problem is None and faults > MAX_ERRORS * answered:
            problem = f"{faults} of {answered} items could not be answered; the results say why"
        changes = {
            "status": "completed" if problem is None else "failed",
            "problem": problem,
            "answered": answered,
            "passed": passes,
            "errors": faults,
            "score": float(score) if problem is None and score is not None else None,
            "finished_at": int(store.now()),
            "leased_by": None,
            "leased_until": None,
        }
        statement = update(EvaluationRun).where(*mine).values(changes).returning(EvaluationRun.id)
        return await session.scalar(statement) is not None


async def completed_runs(
    store: Store, organization_id: str | None = None, project_id: str | None = None
) -> list[tuple[EvaluationRun, EvaluationSet]]:
    """The newest completed runs, then the older ones that their sets are measured by, each with its set: of a project,
    of an organisation, or of all."""
    query = select(EvaluationRun, EvaluationSet).join(EvaluationSet, EvaluationSet.id == EvaluationRun.set_id)
    owned = given_values((EvaluationRun.organization_id, organization_id), (EvaluationRun.project_id, project_id))
    query = query.where(EvaluationRun.status == "completed", *owned)
    query = query.order_by(EvaluationRun.created_at.desc(), EvaluationRun.id.desc())
    async with store.reporting() as session:
        found = [(run, of) for run, of in await session.execute(query.limit(_SUMMED_RUNS))]
        if len(found) == _SUMMED_RUNS:
            there = {run.id for run, _ in found}
            pinned = {of.baseline_run_id for _, of in found if of.baseline_run_id} - there
            older = query.where(EvaluationRun.id.in_(pinned))
            found += [(run, of) for run, of in await session.execute(older)]
    return found
