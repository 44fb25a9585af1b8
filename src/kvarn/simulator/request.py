"""One request on its way from a client to an engine and back."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from kvarn.admission.demand import Demand
from kvarn.admission.engine_admission import EngineAdmission
from kvarn.routing.candidate import RouteRequest
from kvarn.routing.router import ReplicaChoice
from kvarn.wire.block_names import NamedPrompt
from kvarn.wire.sessions import SessionTurn

if TYPE_CHECKING:
    from kvarn.simulator.deployment import Deployment
    from kvarn.simulator.external import ExternalDeployment
    from kvarn.simulator.replica import SimulatedReplica


class End(StrEnum):
    """Ending of a request. Each ends in exactly one way."""

    ANSWERED = "answered"
    REFUSED = "refused"  # by the gateway or an engine
    FAILED = "failed"  # its engine was lost, or the simulation ended before its answer
    LEFT = "left"  # its client did not wait any longer


class SimulatedRequest:
    __slots__ = (
        "admission",
        "answer_delay_s",
        "answering",
        "arrival_s",
        "attempts",
        "cached_tokens",
        "choice",
        "client_left",
        "demand",
        "deployment",
        "end",
        "ended_s",
        "engine_id",
        "entered_s",
        "first_s",
        "is_tool_call",
        "model",
        "number",
        "on_end",
        "output_tokens",
        "priority",
        "prompt",
        "prompt_us",
        "reason",
        "replica",
        "route",
        "session",
        "session_name",
        "tenant",
        "tokens",
    )

    def __init__(
        self,
        number: int,
        model: str,
        prompt: NamedPrompt,
        output_tokens: int,
        arrival_s: float,
        on_end: Callable[[SimulatedRequest], None],
        *,
        tenant: str = "",
        priority: int = 0,
        session: SessionTurn | None = None,
        session_name: str = "",
        is_tool_call: bool = False,
    ) -> None:
        self.number = number
        self.model = model  # the one asked for, or a route
        self.answering = model  # the model that answers, or has been asked to
        self.prompt = prompt
        self.output_tokens = output_tokens  # of its answer
        self.arrival_s = arrival_s
        self.answer_delay_s = 0.0  # from what its engine says until its client has it
        self.on_end = on_end
        self.tenant = tenant
        self.priority = priority
        self.session = session
        self.session_name = session_name
        self.is_tool_call = is_tool_call
        self.deployment: Deployment | ExternalDeployment | None = None  # the one that answers
        self.route: RouteRequest | None = None
        self.choice: ReplicaChoice | None = None
        self.demand: Demand | None = None
        self.admission: EngineAdmission | None = None  # the one that let it through
        self.replica: SimulatedReplica | None = None  # the one that it was sent to
        self.engine_id = str(number)  # another one for each engine that it is sent to
        self.attempts = 0
        self.tokens: list[int] = []  # of its answer, so far
        self.cached_tokens = 0
        self.prompt_us = 0  # for which its prompt was computed
        self.entered_s = arrival_s  # at the gateway's queue
        self.first_s: float | None = None
        self.ended_s: float | None = None
        self.end: End | None = None
        self.reason = ""
        self.client_left = False

    def start_again(self) -> None:
        """Another model is asked: forget the one that could not begin."""
        self.deployment = self.route = self.choice = self.demand = self.admission = self.replica = None
        self.attempts = 0

    @property
    def is_copy(self) -> bool:
        """Whether it is no client's: it has a negative number."""
        return self.number < 0

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s + self.answer_delay_s - self.arrival_s

    @property
    def e2e_s(self) -> float | None:
        return None if self.ended_s is None else self.ended_s + self.answer_delay_s - self.arrival_s

    @property
    def queue_s(self) -> float | None:
        """Seconds that it waited, at the gateway and in its engine, before its prompt was begun."""
        return None if self.first_s is None else max(0.0, self.first_s - self.entered_s - self.prompt_us / 1e6)

    @property
    def tpot_s(self) -> float | None:
        """Seconds for each token after the first; None where there is none."""
        if self.first_s is None or self.ended_s is None or len(self.tokens) < 2:
            return None
        return (self.ended_s - self.first_s) / (len(self.tokens) - 1)
