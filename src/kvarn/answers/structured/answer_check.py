"""The grammar of an answer as the engine gets it, and the check of the finished answer against its schemas."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from kvarn.answers.chat.prompt import opening_of, phase_after_prompt
from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.context import ServingContext
from kvarn.answers.record import RequestRecord
from kvarn.answers.structured.grammar_pool import GrammarPool, encode
from kvarn.answers.turn import Turn
from kvarn.catalog.client_left import cancel_with_client
from kvarn.catalog.models import ModelText, ReadyModel
from kvarn.grammar.asked import AnswerGrammar, Asked
from kvarn.grammar.requests import chat_asked, completion_asked
from kvarn.observe.metrics import GatewayMetrics
from kvarn.sandbox.errors import SandboxError
from kvarn.text.reasoning.splitter import ReasoningPhase
from kvarn.wire.messages import Grammar
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.completions import CompletionRequest
from kvarn.wire.openai.errors import ApiError


async def grammar_of_completion(
    serving: ServingContext, record: RequestRecord, request: CompletionRequest, model: ReadyModel
) -> tuple[AnswerGrammar, Grammar] | None:
    """The grammar of a text completion, and the same as the engine gets it; None: any text. Raises `ApiError`: 400."""
    if not request.is_structured or request.max_tokens == 0:
        return None
    asked = completion_asked(request, model.text.tokenizer.markers)
    made = None if asked is None else await _made(serving, record, asked)
    return None if made is None or made.text is None else (made, Grammar(text=made.text))


async def grammar_of_chat(
    serving: ServingContext,
    record: RequestRecord,
    request: ChatCompletionRequest,
    model: ReadyModel,
    prompt: list[int],
) -> tuple[AnswerGrammar, Grammar] | None:
    """The grammar of a chat's answers behind their reasoning, and the same as the engine gets it; None: any. Raises
    `ApiError`: 400."""
    if not request.is_structured:
        return None
    text = model.text
    asked = chat_asked(request, opening_of(request, model), text.tool_format.syntax, text.tokenizer.markers)
    made = None if asked is None else await _made(serving, record, asked)
    if made is None or made.text is None:
        return None
    return made, _behind_reasoning(made.text, text, phase_after_prompt(request, model, prompt))


async def _made(serving: ServingContext, record: RequestRecord, asked: Asked) -> AnswerGrammar:
    tenant = record.principal.organization_id
    payload = await serving.run(record, lambda: encode(asked))
    made = await cancel_with_client(serving.grammars.make(tenant, asked, payload), record.reply.client_left)
    record.reply.warnings += [warning for warning in made.warnings if warning not in record.reply.warnings]
    return made


def _behind_reasoning(grammar: str, text: ModelText, phase: ReasoningPhase) -> Grammar:
    kind = text.reasoning_format
    if kind is None or phase is ReasoningPhase.AFTER:
        return Grammar(text=grammar)
    opened_by: list[int] = []
    if phase is ReasoningPhase.BEFORE:
        opened_by = [text.tokenizer.encode(start, add_special_tokens=False)[0] for start in kind.starts]
    return Grammar(text=grammar, after=list(kind.ends), opened_by=sorted(set(opened_by)))


_FINISHED = ("stop", "tool_calls", "function_call")

_log = logging.getLogger("kvarn.answers")


@dataclass(slots=True)
class _Written:
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
