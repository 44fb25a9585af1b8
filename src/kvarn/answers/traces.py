"""Traces of requests: what a settled record tells the exporter of spans, and the keeper of requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.observer import AnswerListener, Observer
from kvarn.answers.record import RequestRecord
from kvarn.answers.turn import GeneratedPrompt, Outcome, Turn
from kvarn.clock import SYSTEM_CLOCK
from kvarn.kept.keeper import RequestKeeper
from kvarn.kept.sampling import KeptReason
from kvarn.metering.prices import PriceBook
from kvarn.observe.metrics import UNKNOWN
from kvarn.observe.traces.context import TraceContext, begin, parent_of
from kvarn.observe.traces.conventions import is_operation
from kvarn.observe.traces.exporter import SpanExporter
from kvarn.observe.traces.genai_metrics import GenAiExporter
from kvarn.observe.traces.traced import TracedRequest, TracedTurn, outcome_of
from kvarn.wire.openai.common import without_client_text

if TYPE_CHECKING:
    from kvarn.answers.question import Question

MAX_CONTENT_CHARS = 65_536
"""Characters of a prompt and of each answer that go with a span; the rest is cut off."""
_CACHE = "x-kvarn-cache"
_MAX_WARNINGS, _MAX_CHARS = 16, 256
"""Warnings that are told of a request, and characters of each."""


class Traces(Observer):
    """Gives requests their place in a trace. When they are over, has their spans exported, and has them kept.

    Args:
        exporter: Sends spans; None: the client's trace is only passed on to other servers.
        contents: Send prompts and answers with them.
        keeper: Keeps requests; None: none are kept.
        prices: Prices of tokens.
        usage: Sends metrics of requests; None: none are sent.
    """

    def __init__(
        self,
        exporter: SpanExporter | None = None,
        *,
        contents: bool = False,
        keeper: RequestKeeper | None = None,
        prices: PriceBook | None = None,
        usage: GenAiExporter | None = None,
    ) -> None:
        self.exporter = exporter
        self.keeper = keeper
        self.usage = usage
        self._prices = PriceBook() if prices is None else prices
        self._contents: dict[str, _Contents] | None = {} if exporter is not None and contents else None

    def begin(self, record: RequestRecord, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Find the place in a trace of a request with these headers."""
        parent = parent_of(headers)
        if self.exporter is None:
            record.timeline.trace = parent
            return
        trace = begin(record.id, parent)
        record.timeline.trace = trace if self.exporter.wants(trace) else trace._replace(sampled=False)

    def listen(self, turn: Turn, question: Question[Any, Any]) -> AnswerListener | None:
        """Keep what is written, where contents are sent."""
        if self._contents is None:
            return None
        assert isinstance(turn.prompt, GeneratedPrompt)
        contents = self._contents[turn.id] = _Contents(turn.prompt.logged())
        return contents

    def ended(self, record: RequestRecord, name: str, method: str = "", route: str = "") -> None:
        """Export the spans of a request that is over, and keep it, as far as either is wanted."""
        exporter, keeper = self.exporter, self.keeper
        kept = self._contents if self._contents is not None else {}
        contents = [kept.pop(turn.id, None) for turn in record.turns]
        trace = record.timeline.trace or begin(record.id, None)
        exported = exporter is not None and exporter.wants(trace)
        reason = None if keeper is None else _reason_to_keep(keeper, record, method, route)
        counted = self.usage is not None and bool(record.turns)
        if not exported and reason is None and not counted:
            return
        request = self._traced(record, trace, name, method, route)
        if self.usage is not None and counted:
            self.usage.metrics.observe(request)
        if exporter is not None and exported:
            exporter.add(request, [dict if each is None else each.attributes for each in contents])
        if keeper is not None and reason is not None:
            keeper.add(request, reason)

    def _traced(self, record: RequestRecord, trace: TraceContext, name: str, method: str, route: str) -> TracedRequest:
        owner, choice, deferred = record.principal.owner, record.choice, record.deferred
        wall_clock_offset_s = SYSTEM_CLOCK.time() - SYSTEM_CLOCK.now()
        return TracedRequest(
            trace=trace,
            name=name,
            id=record.id,
            request_id=record.request_id,
            method=method,
            route=route or record.endpoint,
            status=record.reply.status,
            error_code=record.reply.error_code,
            disconnected=record.reply.disconnected,
            warnings=[without_client_text(each)[:_MAX_CHARS] for each in record.reply.warnings[:_MAX_WARNINGS]],
            organization_id=owner.organization_id,
            project_id=owner.project_id,
            key_id=record.principal.key_id or "",
            session=choice.session,
            end_user=record.end_user,
            metadata=record.metadata or {},
            batch_id="" if deferred is None else deferred.batch_id or "",
            model=choice.name,
            model_route="" if choice.route is None else choice.route.name,
            cost=sum(self._cost(turn, record.timeline.events[-1].at_s + wall_clock_offset_s) for turn in record.turns),
            wall_clock_offset_s=wall_clock_offset_s,
            events=record.timeline.events,
            turns=[_traced_turn(turn) for turn in record.turns],
            tools=list(record.tools),
            cache={
                name.removeprefix(_CACHE).lstrip("-") or "result": value
                for name, value in record.reply.headers.items()
                if name.startswith(_CACHE)
            },
        )

    def _cost(self, turn: Turn, ended_at: float) -> int:
        """The cost that the ledger enters."""
        usage = turn.usage
        lost = turn.outcome is Outcome.FAILED and turn.max_output_tokens > 0 and not usage.completion_tokens
        if lost or not usage.did_work:
            return 0
        tokens = {"prompt": usage.prompt_tokens, "cached": usage.cached_tokens, "output": usage.completion_tokens}
        return self._prices.cost(turn.model, ended_at, **tokens)


def _reason_to_keep(keeper: RequestKeeper, record: RequestRecord, method: str, route: str) -> KeptReason | None:
    """The reason to keep a request; None: it is not kept. One may be that asked something of a model, or failed, and of
    which it is known whose it is. (What was refused before its key was known would be the default organisation's.)"""
    if method and all(event.name != "authenticated" for event in record.timeline.events[:2]):
        return None
    asks = bool(record.turns) or record.choice.name != UNKNOWN or is_operation(route or record.endpoint)
    if not asks and record.reply.status < 500:
        return None
    last, reply = record.turns[-1] if record.turns else None, record.reply
    outcome = outcome_of(
        reply.status,
        failed=last is not None and last.outcome is Outcome.FAILED,
        refused=last is not None and last.usage.refused,
        disconnected=reply.disconnected,
    )
    return keeper.reason(record.choice.name, outcome, record.timeline.total_s)


def _traced_turn(turn: Turn) -> TracedTurn:
    usage = turn.usage
    return TracedTurn(
        id=turn.engine_id,
        model=turn.model,
        model_version=turn.model_version,
        adapter=turn.adapter,
        replica=turn.replica,
        service_tier=turn.service_tier,
        outcome=turn.outcome.value,
        refused=usage.refused,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        max_tokens=turn.max_output_tokens if turn.output_bounded and turn.max_output_tokens else None,
        choices=turn.sequences,
        finish_reasons=usage.finish_reasons,
    )


class _Contents:
    """A prompt and the choices of its answer, in the shape of the GenAI conventions."""

    def __init__(self, prompt: dict[str, Any]) -> None:
        messages = prompt.get("messages") or [{"role": "user", "content": prompt.get("prompt")}]
        self._messages = messages
        self._choices: dict[int, str] = {}
        self._ends: dict[int, str] = {}

    def take(self, delta: ChoiceDelta) -> None:
        before = self._choices.setdefault(delta.index, "")
        if len(before) < MAX_CONTENT_CHARS:
            self._choices[delta.index] = before + delta.written
        if delta.finish_reason is not None:
            self._ends[delta.index] = delta.finish_reason

    def end(self, error: BaseException | None) -> None:
        """Nothing more comes."""

    def attributes(self) -> dict[str, str]:
        """Both as JSON. Called in the exporter's thread."""
        asked = [_message(each.get("role", "user"), each.get("content")) for each in self._messages]
        answers = [
            _message("assistant", text) | {"finish_reason": self._ends.get(index, "error")}
            for index, text in sorted(self._choices.items())
        ]
        return {
            "gen_ai.input.messages": msgspec.json.encode(asked).decode(),
            "gen_ai.output.messages": msgspec.json.encode(answers).decode(),
        }


def _message(role: str, content: object) -> dict[str, Any]:
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
    return {"role": role, "parts": [{"type": "text", "content": text[:MAX_CONTENT_CHARS]}]}
