"""Objects of `/v1/organization/deployments`: ours."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from pydantic import Field

from kvarn.wire.openai.common import RequestModel
from kvarn.wire.openai.organization.requests import Name


class DeploymentCreate(RequestModel):
    model: Name
    settings: dict[str, Any] = Field(default_factory=dict)  # as `models[]`; what is left out stays, null is the default
    replicas: Annotated[int, Field(ge=0, le=256)] | None = None
    rollout: dict[str, Any] | None = None  # as the section `rollout`; null: the version serves at once


class DeploymentScale(RequestModel):
    model: Name
    replicas: Annotated[int, Field(ge=0, le=256)] | None  # null: as the version says


class DeploymentRollback(RequestModel):
    model: Name
    version: Annotated[int, Field(ge=0)] | None = None  # null: the one that served before; 0: the configuration's


class ReplicaObject(TypedDict):
    """A replica as this gateway process knows it."""

    replica: str
    version: int
    state: str
    stage: str


class DeploymentRollout(TypedDict):
    """The latest rollout of one of a deployment's versions."""

    version: int
    phase: str
    share: float  # of the requests, that it answers
    reason: str  # of the latest decision


class DeploymentObject(TypedDict):
    """A model that is served or shall be."""

    object: str
    model: str
    version: int  # that shall serve; 0: the configuration's
    previous_version: int | None
    replicas: int  # that shall take requests
    ready: int  # that do, of this version
    settings: dict[str, Any]  # of the version
    changed_at: int | None
    changed_by: str | None
    problem: str | None  # why it is not as it shall be
    rollout: DeploymentRollout | None
    observed: list[ReplicaObject]


class DeploymentVersionObject(TypedDict):
    object: str
    model: str
    version: int
    settings: dict[str, Any]
    fingerprints: dict[str, Any] | None  # of the files that it was deployed with; null: not found yet
    created_at: int
    created_by: str


class DecisionObject(TypedDict):
    """The autoscaler has changed a model's number of replicas, or looked for the first time."""

    object: str
    model: str
    replicas: int
    reason: str
    decided_at: int
