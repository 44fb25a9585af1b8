"""Plans for clients, made where time and memory are bounded: a module of `kvarn.sandbox.worker`."""

from __future__ import annotations

import msgspec

from kvarn.planner import plan
from kvarn.planner.errors import PlanError
from kvarn.planner.report import html_report
from kvarn.planner.request import PlanRequest
from kvarn.planner.sandbox_messages import Asked, Made, Refused


def answer(payload: bytes) -> bytes:
    """Make of an `Asked` a `Made` or a `Refused`."""
    asked = msgspec.json.decode(payload, type=Asked)
    try:
        made = plan(PlanRequest.model_validate(asked.request))
    except (PlanError, RecursionError) as error:
        return msgspec.json.encode(Refused(str(error)))
    text = html_report(made) if asked.want == "html" else msgspec.json.encode(made).decode()
    return msgspec.json.encode(Made(text))
