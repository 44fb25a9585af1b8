"""Finished answers are checked against their schemas before the client hears of their end."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.structured.grammar_pool import GrammarPool
from kvarn.answers.turn import Turn
from kvarn.grammar.asked import AnswerGrammar
from kvarn.observe.metrics import GatewayMetrics
from kvarn.sandbox.errors import SandboxError
from kvarn.wire.openai.errors import ApiError

_FINISHED = ("stop", "tool_calls", "function_call")

_log = logging.getLogger("kvarn.answers")


@dataclass(slots=True)
class _Written:
    """Text and calls that a choice has written so far."""

    text: list[str] = field(default_factory=list)
    calls: dict[int, tuple[str, list[str]]] = field(default_factory=dict)  # name and arguments by the call's index

    def add(self, delta: ChoiceDelta) -> None:
        self.text.append(delta.text)
        for call in delta.tool_calls:
            if isinstance(call.function.name, str):
                self.calls[call.index] = (call.function.name, [])
            if isinstance(call.function.arguments, str):
                self.calls[call.index][1].append(call.function.arguments)


async def only_valid_answers(
    deltas: AsyncGenerator[ChoiceDelta, None],
    grammar: AnswerGrammar,
    pool: GrammarPool,
    turn: Turn,
    metrics: GatewayMetrics,
) -> AsyncGenerator[ChoiceDelta, None]:
    """The deltas of one prompt's choices. A choice that ends by itself does so only if its text, or the arguments of
    its calls, are valid by the schemas of `grammar`. Raises `ApiError`: 500, an answer is not valid."""
    written = defaultdict[int, _Written](_Written)
    async with aclosing(deltas):
        async for delta in deltas:
            written[delta.index].add(delta)
            if delta.finish_reason in _FINISHED and delta.stop_reason is None and not delta.refusal:
                await _check(written.pop(delta.index), grammar, pool, turn, metrics)
            yield delta


async def _check(
    written: _Written, grammar: AnswerGrammar, pool: GrammarPool, turn: Turn, metrics: GatewayMetrics
) -> None:
    schemas = grammar.argument_schemas
    parts = [(schemas[name], "".join(pieces)) for name, pieces in written.calls.values() if name in schemas]
    if not written.calls and grammar.content_schema is not None:
        parts = [(grammar.content_schema, "".join(written.text))]
    if not parts:
        return
    try:
        problem = await pool.check(turn.record.principal.organization_id, parts)
    except SandboxError as error:
        _log.warning("an answer could not be checked %s", error)
        metrics.structured_answers.labels(turn.model, "unchecked").inc()
        return
    metrics.structured_answers.labels(turn.model, "valid" if problem is None else "invalid").inc()
    if problem is not None:
        turn.usage.failed = True
        _log.error("an answer that was kept to its schema is invalid: %s", problem)
        message = f"The answer does not match its schema: {problem}. This is a fault of the server; try again."
        raise ApiError(500, message, type="server_error", code="invalid_structured_output")
