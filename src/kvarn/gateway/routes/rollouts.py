"""`/v1/rollouts`: rollouts under way and ended, for platform administrators."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.rollout import RolloutConfig
from kvarn.gateway.dependencies import ADMINISTRATION, AdminContext, PlatformAdminDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import described
from kvarn.gateway.state import Gateway
from kvarn.rollouts.gates import GATES
from kvarn.rollouts.rollout import Rollout, RolloutEndedError
from kvarn.store.errors import StoreAwayError
from kvarn.store.repositories.rollouts import leave_command, note_rollout
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.openai.lists import ListObject
from kvarn.wire.rollouts import RolloutCommand, RolloutObject

router = json_router("/v1/rollouts", "rollouts", ADMINISTRATION)

_DONE = {"pause": "paused", "resume": "resumed", "promote": "promoted", "rollback": "rolled_back"}


@router.get("", summary="List rollouts")
async def list_rollouts(admin: PlatformAdminDep) -> ListObject[RolloutObject]:
    """The latest rollout of each model that has had one."""
    objects = [_describe(admin.gateway, each) for each in admin.gateway.control.rollouts.rollouts.values()]
    return ListObject(object="list", data=objects, first_id="", last_id="", has_more=False)


@router.post("", include_in_schema=False)
async def start_rollout(admin: PlatformAdminDep) -> RolloutObject:
    """Refuse a rollout between two served models, which earlier versions of Kvarn had."""
    raise ApiError(
        410,
        "Rollouts between served models are no longer supported. Deploy a version of the model instead: "
        "`kvarn deploy MODEL --canary 5,50`, or `rollout` of POST /v1/organization/deployments. To share requests "
        "between models, configure a route with several targets.",
        code="rollout_between_models",
    )


@router.get("/{model}", summary="Retrieve a rollout")
async def get_rollout(admin: PlatformAdminDep, model: str) -> RolloutObject:
    return _describe(admin.gateway, _find(admin, model))


@router.post("/{model}", summary="Pause, resume, promote or roll back")
async def command_rollout(admin: PlatformAdminDep, model: str, body: RolloutCommand) -> RolloutObject:
    """Pause, resume, promote or roll back at once, whether or not the database answers. A gateway process that does not
    lead passes the command on, which takes a second."""
    return _describe(admin.gateway, await give_command(admin, model, body.action))


async def give_command(admin: AdminContext, model: str, action: str) -> Rollout:
    """Have an administrator's command carried out by the leader. Raises `ApiError`: 404, the model has had no rollout;
    409, it has ended or has failed a gate."""
    rollouts, rollout = admin.gateway.control.rollouts, _find(admin, model)
    is_leader = rollouts.is_leader
    if is_leader or rollout.ended:
        try:
            rollout = rollouts.command(model, action, admin.actor.name)
        except RolloutEndedError as error:
            raise ApiError(409, str(error), code="rollout_ended") from None
    try:
        async with admin.audited_change() as change:
            if not is_leader:
                await leave_command(change, model, action)
            note_rollout(change, model, _DONE[action])
        if is_leader:
            await rollouts.save(rollout)
    except StoreAwayError:
        if not is_leader:
            raise
    return rollout


def rollout_config(gateway: Gateway, settings: dict[str, Any], name: str) -> RolloutConfig:
    """The configured section `rollout` with other settings; `name` is theirs in the request. Raises `ApiError`: 400."""
    try:
        return RolloutConfig.model_validate(gateway.config.rollout.model_dump() | settings)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, (name, *first["loc"])))
        raise invalid_request(f"{where}: {first['msg']}", name) from None


def _find(admin: AdminContext, model: str) -> Rollout:
    found = admin.gateway.control.rollouts.rollouts.get(model)
    if found is None:
        raise ApiError(404, f"{model!r} has had no rollout.", param="model", code="rollout_not_found")
    return found


def _describe(gateway: Gateway, rollout: Rollout) -> RolloutObject:
    waits_for = "" if rollout.ended else rollout.waits_for(SYSTEM_CLOCK.time())
    if not rollout.ended and (missing := gateway.control.rollouts.missing(rollout)):
        problem = gateway.control.rollouts.state_of(rollout.candidate)
        waits_for = f"{missing} more ready replicas of {rollout.candidate} ({problem})"
    return described(
        RolloutObject,
        rollout,
        phase=rollout.phase.value,
        share=rollout.shares[rollout.candidate],
        waits_for=waits_for,
        failure=rollout.gates.failure,
        gates={gate: rollout.gates.describe(gate) for gate in GATES},
    )
