"""The demand of a request on an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvarn.fairness.queue import Account

if TYPE_CHECKING:
    from kvarn.admission.engine_load import Reservation

INTERACTIVE, BATCH = 0, 10
"""Priorities up to the first have latency targets; from the second on, requests run on idle capacity."""


class TenantAccount(Account):
    """Service that a tenant got, and whether it asks for more."""

    __slots__ = ("in_service", "refused_at", "refused_priority")

    def __init__(self, name: str, weight: float) -> None:
        super().__init__(name, weight)
        self.in_service = 0
        self.refused_at = float("-inf")  # time of the latest refusal of one of its requests
        self.refused_priority = 0  # priority of that request


@dataclass(slots=True, eq=False, kw_only=True)
class Demand:
    tenant: str
    weight: float = 1.0  # the tenant's share of a saturated engine; > 0
    priority: int = 0
    prompt_tokens: float  # tokens to compute, without those expected in the prefix cache
    output_tokens: float  # expected, over all its sequences
    sequences: int = 1  # rows it becomes in a step once its prompt is computed
    arrival_s: float  # monotonic seconds at which the request came
    cost: float = 0.0  # weighted tokens that its tenant is charged
    predicted_ttft_s: float | None = None  # prediction made when it went to the engine; None where nothing was known
    account: TenantAccount = field(init=False)
    order: int = field(init=False)  # both are set when it arrives at the queue
    reservation: Reservation = field(init=False)  # set when it goes to the engine

    @property
    def is_interactive(self) -> bool:
        """Whether it has latency targets."""
        return self.priority <= INTERACTIVE

    @property
    def is_batch(self) -> bool:
        """Whether it runs on idle capacity only."""
        return self.priority >= BATCH
