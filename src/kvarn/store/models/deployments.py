"""Deployments: which models are served, in which version and with how many replicas; rollouts of their versions."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Double, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from kvarn.store.models.base import Base, Name, Seconds, Sequence


class Deployment(Base):
    """A model: which of its versions serves, and how many replicas it has."""

    __tablename__ = "deployments"

    model: Mapped[Name] = mapped_column(primary_key=True)
    version: Mapped[int]
    previous_version: Mapped[int | None]
    """The version that served before: a rollback goes there."""
    replicas: Mapped[int | None]
    """Set by `scale`; None: as the version says."""
    adapters: Mapped[list[Any] | None]
    """Loaded at run time: every replica of every version has them. Each an `AdapterInfo`."""
    changed_at: Mapped[Seconds]
    changed_by: Mapped[Name]


class VersionNumber(Base):
    """The newest version that a model ever had: numbers are not used again, not even after its deployment was deleted,
    whose replicas may still drain."""

    __tablename__ = "version_numbers"

    model: Mapped[Name] = mapped_column(primary_key=True)
    last_version: Mapped[int]


class DeploymentVersion(Base):
    """A version: checkpoint, adapters, template and settings, bound together. A row is never changed, but for
    `fingerprints`, which are written once."""

    __tablename__ = "deployment_versions"

    model: Mapped[Name] = mapped_column(ForeignKey("deployments.model", ondelete="CASCADE"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    spec: Mapped[dict[str, Any]]
    """The `ModelConfig`; without its name and its replicas it is what two versions are compared by."""
    fingerprints: Mapped[dict[str, Any] | None]
    """Digests of the files that it was deployed with, once they have been found."""
    created_at: Mapped[Seconds]
    created_by: Mapped[Name]


class StoredRollout(Base):
    """The latest rollout of a model. The leader writes `state`; other gateway processes follow."""

    __tablename__ = "rollouts"

    model: Mapped[Name] = mapped_column(primary_key=True)
    state: Mapped[dict[str, Any]]
    command: Mapped[str | None]
    """An administrator's command that the leader has not carried out yet."""
    commanded_by: Mapped[Name | None]
    changed_at: Mapped[Seconds]
    candidate_version: Mapped[int | None]
    """The deployment's version that runs beside the one that serves. None: it needs no replicas any more."""
    candidate_share: Mapped[float | None] = mapped_column(Double)
    """Share of the requests for which that version shall have replicas."""


class RolloutSamples(Base):
    """Samples that a gateway process leaves for the leader, which counts and deletes them."""

    __tablename__ = "rollout_samples"

    id: Mapped[Sequence] = mapped_column(primary_key=True)
    model: Mapped[Name]
    began: Mapped[float] = mapped_column(Double)
    """Start of the rollout, Unix seconds: tells rollouts of a model apart."""
    samples: Mapped[list[Any]]
