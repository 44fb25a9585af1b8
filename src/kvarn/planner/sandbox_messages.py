"""Messages between a gateway and the process that makes its plans."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A `PlanRequest`, and whether its plan is wanted as JSON or as a page."""

    want: Literal["json", "html"]
    request: dict[str, Any]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The reason why there is no plan, and what to do."""

    message: str


class Made(msgspec.Struct, frozen=True, tag=True):
    """The plan as a text in the form that is wanted."""

    text: str
