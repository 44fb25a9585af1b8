"""A request that is over: what its spans are made of, and what is kept of it; nothing that it held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kvarn.observe.timeline import Event
from kvarn.observe.traces.context import TraceContext

CLIENT_LEFT = 499
"""Status of a request whose client left before an answer began."""


class TracedTurn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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


class TracedTool(msgspec.Struct, frozen=True):
    """A call of a tool that the platform ran; times on the clock of the request's events."""

    id: str
    type: str
    name: str
    status: str
    begin_s: float
    end_s: float


class TracedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that is over."""

    trace: TraceContext
    name: str
    """Such as `POST /v1/chat/completions`, or `batch line`."""
    id: str = ""
    """Unique: its record's."""
    request_id: str
    method: str = ""
    """Empty: it was no HTTP request."""
    route: str = ""
    """The path of the operation."""
    status: int = 0
    error_code: str = ""
    """Code of the error that the client got."""
    disconnected: bool = False
    warnings: Sequence[str] = ()
    """Fields of the request that were ignored or changed, in words."""
    organization_id: str = ""
    project_id: str = ""
    key_id: str = ""
    session: str = ""
    """The client's session: a cache key, or a conversation."""
    end_user: str = ""
    """The client's own user, as the request names them."""
    metadata: Mapping[str, str] = {}
    """The client's, as the request has it."""
    batch_id: str = ""
    model: str = ""
    """The configured model that answered."""
    model_route: str = ""
    """The name that was asked for, where it stands for several models."""
    cost: int = 0
    """Billionths of the currency's unit, as the ledger has it."""
    wall_clock_offset_s: float
    """Seconds from the clock of `events` to 1970's."""
    events: Sequence[Event]
    turns: Sequence[TracedTurn] = ()
    tools: Sequence[TracedTool] = ()
    cache: Mapping[str, str] = {}
    """The part that the response cache had in it, as its headers tell (`result`, `kind`, `age`, `similarity`, `key`);
    empty: none."""

    @property
    def is_error(self) -> bool:
        """Whether the server failed: the client's errors are not the server's."""
        return self.status >= 500 or any(turn.outcome == "failed" and not turn.refused for turn in self.turns)

    @property
    def outcome(self) -> str:
        """See `outcome_of`."""
        last = self.turns[-1] if self.turns else None
        failed, refused = last is not None and last.outcome == "failed", last is not None and last.refused
        return outcome_of(self.status, failed=failed, refused=refused, disconnected=self.disconnected)

    @property
    def total_s(self) -> float:
        """Seconds from its headers to its last byte."""
        return max(event.at_s for event in self.events if not event.turn) - self.events[0].at_s

    @property
    def ttft_s(self) -> float | None:
        """Seconds from its last byte to the first token of its answer; None: there was none."""
        received_s = next((event.at_s for event in self.events if event.name == "read"), self.events[0].at_s)
        return next((event.at_s - received_s for event in self.events if event.name == "first_token"), None)

    @property
    def started_at(self) -> float:
        """Time at which its headers came, in seconds since 1970."""
        return self.events[0].at_s + self.wall_clock_offset_s


def outcome_of(status: int, *, failed: bool, refused: bool, disconnected: bool) -> str:
    """End of a request for its client: `failed`, `refused`, `aborted` (the client left) or `finished`.

    Args:
        status: HTTP status; 0: none was sent.
        failed: Its last turn failed.
        refused: The engine did not take that turn, or gave it up.
        disconnected: Its client left.
    """
    if status >= 400 and status != CLIENT_LEFT:
        return "refused" if status < 500 else "failed"
    if failed:
        return "refused" if refused else "failed"
    return "aborted" if disconnected or status == CLIENT_LEFT else "finished"
