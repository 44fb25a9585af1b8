"""Base class of all parts of the configuration."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

TextOrOff = Annotated[str, BeforeValidator(lambda value: "off" if value is False or value is None else value)]
"""A text that may be `off`, which YAML reads as false; null is the same."""


class Section(BaseModel):
    """A part of the configuration: immutable, and strict about unknown keys. A field with `repr=False` is a secret,
    which no output shows."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
