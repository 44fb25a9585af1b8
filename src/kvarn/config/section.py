"""What all parts of the configuration have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the configuration: immutable, and strict about unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
