"""What a request would ask of an engine."""

from __future__ import annotations

from dataclasses import dataclass

from kvarn.admission.retries import Key

INTERACTIVE, BATCH = 0, 10
"""Priorities up to the first have latency targets; from the second on, requests run on idle capacity."""


@dataclass(slots=True, eq=False, kw_only=True)
class Demand:
    """One request, before and while an engine works on it."""

    tenant: str
    weight: float = 1.0
    """The tenant's share of a saturated engine; > 0."""
    priority: int = 0
    prompt_tokens: float
    """That have to be computed: those expected in the prefix cache are left out."""
    output_tokens: float
    """Expected, over all its sequences."""
    sequences: int = 1
    """Rows it becomes in a step once its prompt is computed."""
    received: float
    """Monotonic seconds at which the request came."""
    key: Key | None = None
    """Which request it is, where that is known: the same one may come again after a refusal."""
    accepted: bool = False
    """It was predicted to be in time."""
    promised: bool = False
    """It was refused before, and came again when it was told to: it is not refused for being late."""
    body_bytes: int = 0
    """Of a request that was not parsed when it was decided on; 0 where they are not all of its prompt."""
    cost: float = 0.0
    """Weighted tokens that its tenant is charged."""
    released: float | None = None
    """When it went to the engine; None while it waits."""
    predicted_ttft_s: float | None = None
    """What was foretold when it went to the engine; None where nothing was known."""

    @property
    def is_interactive(self) -> bool:
        """Whether it has latency targets."""
        return self.priority <= INTERACTIVE

    @property
    def is_batch(self) -> bool:
        """Whether it runs on idle capacity only."""
        return self.priority >= BATCH
