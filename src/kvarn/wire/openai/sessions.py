"""Hints about sessions, with the names that vLLM's proposals give them (issues 52113 and 37003), and their answers."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field


class _Hint(BaseModel):
    """Base: what is unknown of a hint is ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False, frozen=True)


class AgentCacheControl(_Hint):
    ttl: float = Field(300.0, ge=0, le=86400)  # seconds


class ContextEdit(_Hint):
    type: Literal["offload", "prefetch", "evict"]


class ContextManagement(_Hint):
    edits: Annotated[list[ContextEdit], Field(fail_fast=True, max_length=64)] = []


class AgentHint(_Hint):
    """The session of a request, and what its KV is worth to the client."""

    session_id: str | None = Field(None, max_length=256)
    parent_session_id: str | None = Field(None, max_length=256)
    cache_control: AgentCacheControl | None = None
    context_management: ContextManagement | None = None

    @property
    def is_last(self) -> bool:
        """Whether the session's KV is given up once this turn is over."""
        return self.context_management is not None and any(
            edit.type == "evict" for edit in self.context_management.edits
        )


class RetentionDirective(_Hint):
    """Tokens to keep; of several the longest duration counts, for all tokens of the request."""

    priority: int = Field(50, ge=0, le=100)
    duration: float | None = Field(None, ge=0)  # seconds


RetentionDirectives = Annotated[list[RetentionDirective], Field(fail_fast=True, max_length=64)]


class AnnouncedSession(msgspec.Struct, kw_only=True):
    """The answer to an announcement of a session's next turn."""

    id: str
    object: Literal["session.prefetch"] = "session.prefetch"
