"""What the loop of an engine process turns: a service that generates or embeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kvarn.replica.spec import ReplicaSpec
from kvarn.wire.messages import Embed, Embedded, EngineStats, ModelCard, Refused, StepOutput, Submit

Response = StepOutput | Refused | Embedded
"""What a step brings."""

ReportProgress = Callable[[str, float], None]
"""Called while a model loads, with the stage and the fraction of it that is done."""


class Service(Protocol):
    """Takes requests and works on them in steps. Single-threaded; knows no sockets."""

    card: ModelCard
    """What is served."""

    def accept(self, request: Submit | Embed) -> Refused | None:
        """Queue a request, or say why not."""
        ...

    def abort(self, request_id: str) -> None:
        """Forget a request before the next step. Unknown ids are ignored."""
        ...

    def start_draining(self) -> None:
        """Refuse every later request; go on with those already taken."""
        ...

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        ...

    def step(self) -> Sequence[Response]:
        """Work once; the messages it brought, in order, none where nothing could be done. An exception ends all."""
        ...

    def stats(self) -> EngineStats:
        """Gauges and totals after the latest step."""
        ...

    def shutdown(self) -> None:
        """Free what the service holds. Idempotent."""
        ...


ServiceFactory = Callable[[ReplicaSpec, ReportProgress], Service]
