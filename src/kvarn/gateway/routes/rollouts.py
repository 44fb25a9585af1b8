"""`/v1/rollouts`: new versions of models take over, for platform administrators."""

from __future__ import annotations

import time

from fastapi import APIRouter
from pydantic import ValidationError

from kvarn.config.rollout import RolloutConfig
from kvarn.fleet.rollout import Rollout, RolloutEndedError
from kvarn.gateway.dependencies import ADMINISTRATION, AdminContext, PlatformAdminDep
from kvarn.gateway.openapi import JsonRoute
from kvarn.quality.gates import GATES
from kvarn.serving.rollouts import UnknownRolloutError
from kvarn.store.errors import StoreAwayError
from kvarn.store.repositories.rollouts import leave_command, note_rollout
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.openai.lists import ListObject
from kvarn.wire.rollouts import RolloutCommand, RolloutDecision, RolloutObject, StartRollout

router = APIRouter(prefix="/v1/rollouts", tags=["rollouts"], route_class=JsonRoute, dependencies=ADMINISTRATION)

_DONE = {"pause": "paused", "resume": "resumed", "promote": "promoted", "rollback": "rolled_back"}


@router.get("", summary="List rollouts")
async def list_rollouts(admin: PlatformAdminDep) -> ListObject[RolloutObject]:
    """The latest rollout of each model that has had one."""
    objects = [_describe(each) for each in admin.gateway.rollouts.rollouts.values()]
    return ListObject(object="list", data=objects, first_id="", last_id="", has_more=False)


@router.post("", summary="Begin a rollout")
async def start_rollout(admin: PlatformAdminDep, body: StartRollout) -> RolloutObject:
    """Have a new version take over a model's requests, step by step, as long as no gate fails."""
    rollouts = admin.gateway.rollouts
    try:
        settings = admin.gateway.config.rollout.model_dump() | body.settings
        config = RolloutConfig.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, ("settings", *first["loc"])))
        raise invalid_request(f"{where}: {first['msg']}", "settings") from None
    try:
        rollout = rollouts.begin(body.model, body.candidate, config, admin.actor.name)
    except UnknownRolloutError as error:
        raise invalid_request(str(error), "candidate") from None
    async with admin.audited_change() as change:
        note_rollout(change, body.model, "started", candidate=body.candidate)
    await rollouts.save(rollout)
    return _describe(rollout)


@router.get("/{model}", summary="Retrieve a rollout")
async def get_rollout(admin: PlatformAdminDep, model: str) -> RolloutObject:
    """The latest rollout of a model."""
    return _describe(_find(admin, model))


@router.post("/{model}", summary="Pause, resume, promote or roll back")
async def command_rollout(admin: PlatformAdminDep, model: str, body: RolloutCommand) -> RolloutObject:
    """Stay at this step, go on, give all requests to the new version now, or give them all to the stable one now. It
    holds at once, whether or not the database answers; a gateway process that only follows passes it on, which takes a
    second."""
    rollouts, rollout = admin.gateway.rollouts, _find(admin, model)
    judges = rollouts.judges
    if judges or rollout.ended:
        try:
            rollout = rollouts.command(model, body.action, admin.actor.name)
        except RolloutEndedError as error:
            raise ApiError(409, str(error), code="rollout_ended") from None
    try:
        async with admin.audited_change() as change:
            if not judges:
                await leave_command(change, model, body.action)
            note_rollout(change, model, _DONE[body.action])
        if judges:
            await rollouts.save(rollout)
    except StoreAwayError:
        if not judges:
            raise
    return _describe(rollout)


def _find(admin: AdminContext, model: str) -> Rollout:
    found = admin.gateway.rollouts.rollouts.get(model)
    if found is None:
        raise ApiError(404, f"{model!r} has had no rollout.", param="model", code="rollout_not_found")
    return found


def _describe(rollout: Rollout) -> RolloutObject:
    return RolloutObject(
        model=rollout.model,
        stable=rollout.stable,
        candidate=rollout.candidate,
        phase=rollout.phase.value,
        paused=rollout.paused,
        share=rollout.shares[rollout.candidate],
        answered=rollout.answered,
        waits_for="" if rollout.ended else rollout.waits_for(time.time()),
        failure=rollout.gates.failure,
        gates={gate: rollout.gates.describe(gate) for gate in GATES},
        log=[
            RolloutDecision(at=each.at, action=each.action, share=each.share, reason=each.reason, by=each.by)
            for each in rollout.log
        ],
    )
