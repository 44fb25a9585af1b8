"""Running one call of a tool: noted before it begins, bounded in time, entered into the ledger, shown as data."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvarn.answers.errors import to_api_error
from kvarn.answers.record import RequestRecord
from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.tools import ToolsConfig
from kvarn.jobs.run_to_completion import run_to_completion
from kvarn.metering.event import TOOLS, InFlight, Measured
from kvarn.metering.service import Metering, wall_clock_of
from kvarn.observe.tools import ToolMetrics
from kvarn.observe.traces.traced import TracedTool
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.models import StoredToolCall
from kvarn.store.repositories import tool_calls as stored
from kvarn.store.repositories.tool_calls import NewCall
from kvarn.tools.types import Quote, Tool, ToolCall, ToolContext, ToolResult
from kvarn.wire.openai.errors import ApiError

_log = logging.getLogger("kvarn.tools")

CANCELLED = "cancelled"


@dataclass(slots=True)
class EarlierCalls:
    """Calls that earlier runs of a response in the background have made; each is used once, in its order."""

    found: dict[tuple[str, str], list[ToolResult]] = field(default_factory=lambda: defaultdict(list))

    def take(self, call: ToolCall) -> ToolResult | None:
        mine = self.found.get((call.name, digest_of(call.arguments)))
        return mine.pop(0) if mine else None


@dataclass(slots=True)
class ClaimedCalls:
    """Approved calls of one request, by their requests for approval."""

    noted: dict[str, str] = field(default_factory=dict)
    """Ids of those that this request runs; each is taken out when it begins."""
    ended: dict[str, ToolResult] = field(default_factory=dict)
    """Results of those that have run before, in whichever request."""


def digest_of(arguments: str) -> str:
    """SHA-256 of a call's arguments: the same for the same JSON, however it is spaced and ordered."""
    with suppress(ValueError, RecursionError):
        arguments = json.dumps(json.loads(arguments or "{}"), sort_keys=True)
    return hashlib.sha256(arguments.encode("utf-8", "surrogatepass")).hexdigest()


class ToolRunner:
    """Runs calls of tools for one gateway process."""

    def __init__(self, config: ToolsConfig, store: Store, metering: Metering, metrics: ToolMetrics) -> None:
        self.config = config
        self.metrics = metrics
        self._store = store
        self._metering = metering

    async def earlier(self, record: RequestRecord, answer_id: str) -> EarlierCalls:
        """Calls of a response in the background that another run of it has begun. One that came to no end may have run:
        it is not run again."""
        calls = EarlierCalls()
        for row in await stored.calls_of(self._store, record.principal, answer_id):
            result = _MAY_HAVE_RUN if row.result is None else msgspec.convert(row.result, ToolResult)
            calls.found[row.name, row.arguments].append(result)
        return calls

    async def claim(self, record: RequestRecord, answer_id: str, calls: Sequence[NewCall]) -> ClaimedCalls:
        """Note approved calls, all or none: an approval lets its call run once, however often it is sent. Raises
        `ApiError` 409: one has been used, and there is no result of it; `StoreAwayError`."""
        ended: dict[str, ToolResult] = {}

        def look_at(call: NewCall, row: StoredToolCall | None) -> None:
            ended[str(call.approval_request_id)] = _earlier_result(call, row, answer_id)

        sent_by = record.principal, answer_id, record.request_id
        return ClaimedCalls(await stored.claim_approved(self._store, *sent_by, calls, look_at), ended)

    async def release(self, claimed: ClaimedCalls) -> None:
        """Let calls that were claimed and have not begun be approved again. Done even where the caller is cancelled."""
        if claimed.noted:
            try:
                await run_to_completion(stored.release_claims(self._store, list(claimed.noted.values())))
            except StoreAwayError as error:
                _log.warning("approved calls that did not run cannot be approved again: %s", error)

    async def forget(self, *answer_ids: str, approved: bool = False) -> None:
        """Drop what was kept of a response's results: of its `approved` calls, or of the others."""
        try:
            await stored.forget_results(self._store, *answer_ids, approved=approved)
        except StoreAwayError as error:
            _log.warning("results of the tools of %s stay in the database until they expire: %s", answer_ids[0], error)

    async def run(
        self,
        context: ToolContext,
        kind: str,
        tool: Tool,
        call: ToolCall,
        answer_id: str,
        *,
        kept: bool = False,
        call_id: str | None = None,
    ) -> ToolResult:
        """Run a call. `answer_id`: what `StoredToolCall` has under this name. `kept`: another request or gateway may
        look for the result. `call_id`: the call is noted already. Raises `ApiError` where the tool ends the request."""
        record, began_s = context.record, SYSTEM_CLOCK.now()
        if call_id is None:
            new = NewCall(kind, call.name, digest_of(call.arguments))
            try:
                call_id = await stored.note_started(self._store, record.principal, answer_id, record.request_id, new)
            except StoreAwayError:
                self.metrics.calls.labels(kind, "failed").inc()
                return failed("The call was not run: the server's database, which notes calls, does not answer.")
        result: ToolResult | None = None
        status, error = CANCELLED, None
        try:
            result = await self._bounded(context, tool, call)
            status, error = result.status, None if result.error is None else json.dumps(result.error)
            return result
        except ApiError as refusal:
            status, error = "failed", refusal.message
            raise
        finally:
            ended_s = SYSTEM_CLOCK.now()
            self.metrics.calls.labels(kind, status).inc()
            self.metrics.seconds.labels(kind).observe(ended_s - began_s)
            record.tools.append(TracedTool(call.id, kind, call.name, status, began_s, ended_s))
            self._enter(record, call_id, kind, status, began_s)
            size = 0 if result is None else len(result.output.encode("utf-8", "surrogatepass"))
            ending = stored.note_ended(
                self._store,
                record.principal,
                call_id,
                status,
                duration_ms=round(1000 * (ended_s - began_s)),
                result_bytes=size,
                error=error,
                result=msgspec.to_builtins(result) if kept and result is not None else None,
            )
            try:
                await run_to_completion(ending)
            except StoreAwayError as away:
                _log.warning("the end of tool call %s was not written: %s", call_id, away)

    async def _bounded(self, context: ToolContext, tool: Tool, call: ToolCall) -> ToolResult:
        left_s = context.deadline - SYSTEM_CLOCK.now()
        try:
            async with asyncio.timeout(left_s):
                return await tool.call(context, call)
        except TimeoutError:
            why = f"The tool was stopped after {max(0.0, left_s):.0f} s, without a result."
            return ToolResult(why, "incomplete", _error(why))
        except ApiError:
            raise
        except StoreAwayError as error:  # a full disk, most often
            _log.warning("the tool %r failed: %s", call.name, error)
            return failed(to_api_error(error).message)
        except Exception:
            _log.exception("the tool %r failed", call.name)
            return failed("The tool failed; the server's log says why.")

    def _enter(self, record: RequestRecord, call_id: str, kind: str, status: str, began_s: float) -> None:
        """Enter a call that has ended into the ledger: an event of its own, at the price of the model `tool:TYPE`
        (`per_request`). It has no tokens: those that the model reads of its result are in the next turn's event."""
        principal = record.principal
        request = InFlight(
            id=f"use_{call_id}",
            request_id=record.request_id,
            organization_id=principal.organization_id,
            project_id=principal.project_id,
            user_id=principal.user_id,
            key_id=principal.key_id,
            endpoint=TOOLS,
            model=f"tool:{kind}",
            batch_id=None if record.deferred is None else record.deferred.batch_id,
            started=wall_clock_of(began_s),
        )
        outcome = {"completed": "finished", "cancelled": "aborted"}.get(status, "failed")
        self._metering.finish(None, request, Measured(outcome, 0, 0, 0, SYSTEM_CLOCK.time(), None))


_MAX_REASON = 4096
"""Bytes of the reason of a failure: a tool may take it from code that a model wrote."""

_UNKNOWN = "It is not known whether this call has run: the server stopped meanwhile. It was not run again."
_MAY_HAVE_RUN = ToolResult(_UNKNOWN, "incomplete", {"type": "mcp_tool_execution_error", "content": []})


def _earlier_result(call: NewCall, row: StoredToolCall | None, answer_id: str) -> ToolResult:
    """The result of an approved call that was noted before. Raises `ApiError` 409: there is none."""
    if row is None or (row.status == stored.STARTED and row.answer_id != answer_id):
        raise ApiError(
            409,
            f"The call {call.name!r} was approved before, and has not ended: it is running for another request, or its "
            "server stopped meanwhile. It is not run twice. Ask again to get its result.",
            code="approved_call_running",
            param="input",
        )
    if (row.name, row.arguments) != (call.name, call.arguments):
        raise _used(f"The approval {call.approval_request_id!r} was used for another call")
    if row.result is not None:
        return msgspec.convert(row.result, ToolResult)
    if row.answer_id == answer_id:  # an earlier run of a response in the background
        return _MAY_HAVE_RUN
    raise _used(f"The call {call.name!r} was approved before. It ended as {row.status!r}, and its result is not kept")


def _used(why: str) -> ApiError:
    message = f"{why}; it is not run twice. Let the model make another call, and approve that."
    return ApiError(409, message, code="approval_used", param="input", headers={"x-should-retry": "false"})


def failed(why: str) -> ToolResult:
    shown, _ = cut(why, _MAX_REASON)
    return ToolResult(shown, "failed", _error(shown))


def _error(why: str) -> dict[str, Any]:
    return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": why}]}


def cut(text: str, max_bytes: int) -> tuple[str, bool]:
    """The beginning of a text that has at most so many bytes in UTF-8, and whether that is less than all."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= max_bytes:
        return raw.decode(), False
    return raw[:max_bytes].decode("utf-8", "ignore"), True


def texts_of(result: ToolResult, name: str, max_bytes: int) -> tuple[list[str], list[str], list[Quote]]:
    """Texts that the model is shown of a result, before they are quoted, with their sources, and the quotes among them,
    which are the last. What is longer than `max_bytes` together is cut off, and says so."""
    pairs: list[tuple[str, str, Quote | None]] = [
        (each.text, f"{each.filename} {each.url}".rstrip(), each) for each in result.quotes
    ]
    if result.output or not pairs:
        pairs.insert(0, (result.output, f"the tool {name}", None))
    texts, sources, quotes, left = [], [], [], max_bytes
    for number, (text, source, quote) in enumerate(pairs):
        shown, is_cut = cut(text, left)
        left -= len(shown.encode())
        if is_cut:
            rest = len(pairs) - number - 1
            shown += "\n[The rest was cut off: it is longer than a result may be"
            shown += f". {rest} more texts were left out.]" if rest else ".]"
        texts.append(shown)
        sources.append(source)
        if quote is not None:
            quotes.append(quote)
        if is_cut:
            break
    return texts, sources, quotes
