"""What the operations on responses need besides what others do."""

from __future__ import annotations

from dataclasses import dataclass

from kvarn.responses.background_runs import BackgroundResponses
from kvarn.serving.context import ServingContext


@dataclass(frozen=True, slots=True)
class ResponsesContext(ServingContext):
    """Adds the responses that run in this process."""

    responses: BackgroundResponses
