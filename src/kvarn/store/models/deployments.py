"""Deployments: which models a deployment of Kvarn serves, in which version and with how many replicas."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from kvarn.store.models.base import Base, Name, Seconds


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
