"""A request while it is answered: who sent it, how it is replied to, the model that was chosen, and its turns."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kvarn.admission.demand import BATCH
from kvarn.answers.sessions import NO_HINTS, SessionHints
from kvarn.answers.timeline import RequestTimeline
from kvarn.catalog.client_left import ClientLeft
from kvarn.config.routes import RouteConfig
from kvarn.observe.metrics import UNKNOWN
from kvarn.observe.traces.traced import TracedTool
from kvarn.store.ids import new_id
from kvarn.store.owner import ANYBODY, Principal
from kvarn.wire.dialect import Dialect
from kvarn.wire.openai.cache import NO_CACHE_OPTIONS, CacheOptions
from kvarn.wire.openai.dialect import OPENAI

if TYPE_CHECKING:
    from kvarn.answers.turn import Turn
    from kvarn.catalog.models import ServedModel

_log = logging.getLogger("kvarn.answers")


@dataclass(slots=True)
class Reply:
    """The reply to a request's client, beside the body."""

    dialect: Dialect = OPENAI  # the API whose shapes it has, errors included
    client_left: ClientLeft = None
    """Returns once the client has left. May be awaited when the body has been read. For a line of a batch: once the
    batch is preempted."""
    disconnected: bool = False  # the client left before the end of the answer
    status: int = 0  # HTTP status sent; 0 before the answer starts
    error_code: str = ""  # code of the error that was sent, in the middle of a stream too
    headers: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    """Fields of the request that are ignored or changed: go into the answer's headers and into the log."""


class FoundModel(NamedTuple):
    """The model, version and adapter that the requested name stands for."""

    name: str
    served: ServedModel
    adapter: str


@dataclass(slots=True)
class ChosenModel:
    name: str = UNKNOWN  # the configured model that answers: a label of metrics
    route: RouteConfig | None = None  # the route that the request named
    target: str = ""  # the model that the route chose
    found: FoundModel | None = None  # the version that was drawn for the request's model: of several, it keeps one
    session: str = ""  # the client's session, where it names one: its requests go to the same target and replica
    degraded_from: str | None = None  # the model that was to answer, where another one does
    overload_fallbacks: Sequence[str] = ()  # models that may answer where this one would be late


@dataclass(frozen=True, slots=True)
class Deferred:
    """A request without a waiting client: a line of a batch, or a copy for comparison."""

    priority: int  # the best tier it may run in
    batch_id: str | None = None


class Holdings(AsyncExitStack):
    """Holdings of a request until its answer is over: given back and settled then, last one first."""

    bytes = 0  # memory; see `HeldBytes`


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request, or one line of a batch."""

    request_id: str
    """Sent back as `x-request-id`, logged, and in the ledger: the client's own where it sent a valid one, else made of
    `id`. Two requests may have the same."""
    id: str = field(default_factory=lambda: new_id(""), kw_only=True)
    """Unique: what follows the prefix in the id of its answer (`chatcmpl-…`), and the beginning of its turns' ids."""
    endpoint: str = UNKNOWN  # path of the operation, such as `/v1/chat/completions`
    principal: Principal = ANYBODY
    body_bytes: int = 0
    session: SessionHints = NO_HINTS
    cache: CacheOptions = NO_CACHE_OPTIONS  # wishes in its headers
    seed_drawn: bool = False  # the server gave it its seed, so that it can be repeated
    deferred: Deferred | None = None  # None: a client waits for it
    end_user: str = ""  # the client's own user, as the request names them
    metadata: Mapping[str, str] | None = None  # the client's
    reply: Reply = field(default_factory=Reply)
    choice: ChosenModel = field(default_factory=ChosenModel)
    timeline: RequestTimeline = field(default_factory=RequestTimeline)
    turns: list[Turn] = field(default_factory=list)
    """Its generations, the latest last: one, or more where a model could not begin."""
    tools: list[TracedTool] = field(default_factory=list)
    """Calls of tools that the platform ran for it, in the order of their ends."""
    holdings: Holdings = field(default_factory=Holdings)
    stored: bool = False  # the database keeps its answer

    def is_batch(self, priority: int = 0) -> bool:
        """Whether it runs in the batch tier; `priority` is the client's wish."""
        best = self.principal.priority if self.deferred is None else self.deferred.priority
        return max(best, priority) >= BATCH

    def warn(self, warning: str) -> None:
        if warning not in self.reply.warnings:
            self.reply.warnings.append(warning)

    async def close(self) -> None:
        """Settle its turns and give back what it holds; may be called again."""
        try:
            await self.holdings.aclose()
        except Exception:
            _log.exception("request %s could not be settled", self.request_id)
        finally:
            for turn in self.turns:
                turn.release()
        if self.timeline.events[-1].name != "settled":  # else it was settled before its last byte
            self.timeline.mark("settled")
