"""The grammar of an answer, as the engine gets it."""

from __future__ import annotations

from kvarn.answers.chat.prompt import opening_of, phase_after_prompt
from kvarn.answers.context import ServingContext
from kvarn.answers.record import RequestRecord
from kvarn.answers.structured.grammar_pool import encode
from kvarn.catalog.client_left import cancel_with_client
from kvarn.catalog.models import ModelText, ReadyModel
from kvarn.grammar.asked import AnswerGrammar, Asked
from kvarn.grammar.requests import chat_asked, completion_asked
from kvarn.text.reasoning.splitter import ReasoningPhase
from kvarn.wire.messages import Grammar
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.completions import CompletionRequest


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
    asked = chat_asked(request, opening_of(request, model), text.tool_format.opening("f"), text.tokenizer.markers)
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
