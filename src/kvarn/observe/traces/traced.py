"""A request that is over: what its spans are made of, and nothing that it held."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvarn.observe.timeline import Event
from kvarn.observe.traces.context import TraceContext


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedTurn:
    """A turn that is settled."""

    id: str
    """The engine's id of it."""
    model: str
    model_version: str = ""
    adapter: str = ""
    replica: str = ""
    service_tier: str = "default"
    outcome: str = "finished"
    refused: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    max_tokens: int | None = None
    """None: the client set no bound."""
    choices: int = 1
    finish_reasons: Sequence[str] = ()
    contents: Callable[[], Mapping[str, str]] = dict
    """Makes attributes of its prompt and its answers; none where contents are not sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    """A request that is over."""

    trace: TraceContext
    name: str
    """Such as `POST /v1/chat/completions`, or `batch line`."""
    request_id: str
    method: str = ""
    """Empty: it was no HTTP request."""
    route: str = ""
    """The path of the operation."""
    status: int = 0
    disconnected: bool = False
    organization_id: str = ""
    project_id: str = ""
    key_id: str = ""
    model: str = ""
    """The configured model that answered."""
    model_route: str = ""
    """The name that was asked for, where it stands for several models."""
    wall_clock_offset_s: float
    """Seconds from the clock of `events` to 1970's."""
    events: Sequence[Event]
    turns: Sequence[TracedTurn] = ()

    @property
    def is_error(self) -> bool:
        """Whether the server failed: the client's errors are not the server's."""
        return self.status >= 500 or any(turn.outcome == "failed" and not turn.refused for turn in self.turns)
