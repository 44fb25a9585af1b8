"""Answering a chat with a model that another server runs."""

from __future__ import annotations

import json
from functools import partial
from hashlib import sha256

from kvarn.answers.chat.operation import ChatPrompt, ChatQuestion
from kvarn.answers.chat.prompt import render_chat
from kvarn.answers.context import ServingContext
from kvarn.answers.moderation.checks import chat_texts
from kvarn.answers.record import RequestRecord
from kvarn.answers.turn import AnswerIdentity, Deltas, Turn
from kvarn.catalog.models import ReadyModel
from kvarn.external.deltas import ChoiceReader
from kvarn.external.fields import chat_body
from kvarn.external.generation import ExternalPrompt, generate_external
from kvarn.external.model import ExternalModel
from kvarn.text.sampling import at_most, stop_strings
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.errors import ContextLengthError, invalid_request

_TOKENS_A_MESSAGE = 4  # tokens of a message's role and markers


async def count_external_chat(
    external: ExternalModel,
    serving: ServingContext,
    record: RequestRecord,
    request: ChatCompletionRequest,
    model: ReadyModel,
) -> int:
    """The tokens of a chat's prompt: exact where the model's template is here, else estimated."""
    if model.exact_prompts:
        return len(await render_chat(serving, record, request, model))
    texts = chat_texts(request.plain_messages, request.active_tools)
    text = await serving.run(record, lambda: "\n".join(filter(None, texts)))
    counted = await serving.run(record, lambda: external.count_tokens(text))
    return counted + _TOKENS_A_MESSAGE * len(request.messages)


async def external_chat(
    external: ExternalModel, serving: ServingContext, record: RequestRecord, question: ChatQuestion, model: ReadyModel
) -> ChatPrompt:
    """Check a chat and make its request to the other server."""
    request, gateway_config = question.request, serving.gateway_config
    if question.context:
        raise invalid_request("Another server runs this model: it takes no token ids before a chat.", "context")
    stop_strings(request, gateway_config)
    choices = at_most("n", request.n, gateway_config.max_n) or 1
    at_most("top_logprobs", request.top_logprobs, gateway_config.max_logprobs)
    prompt_tokens = await count_external_chat(external, serving, record, request, model)
    named = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    given: int | None = getattr(request, named)
    max_tokens, bound = external.output_bound(model.card, prompt_tokens, given)
    longest = model.card.max_context_length
    if model.exact_prompts and longest and prompt_tokens + (given or 1) > longest:
        raise ContextLengthError(longest, prompt_tokens, given or 1, named if given else "messages")
    salt = cache_salt(record, request.cache_salt)
    name = external.config.model or model.name
    body = await serving.run(record, lambda: chat_body(request, name, external.config, bound, salt))
    key = await serving.run(record, lambda: prompt_key(body))

    def start(turn: Turn) -> Deltas:
        use = request.tool_use
        readers = [
            ChoiceReader(number, legacy=use is not None and use.legacy, with_reasoning=request.include_reasoning)
            for number in range(choices)
        ]
        prompt = ExternalPrompt("chat/completions", body, key, prompt_tokens)
        return generate_external(serving, external, prompt, readers, turn)

    return ChatPrompt(
        model=external.picked(model, key),
        tokens=prompt_tokens,
        shown=[],
        max_output_tokens=max_tokens * choices,
        sequences=choices,
        output_bounded=given is not None,
        priority=request.priority,
        service_tier=request.service_tier,
        identity=AnswerIdentity(request),
        moderated=[("messages", partial(chat_texts, request.plain_messages, request.active_tools))],
        logged=lambda: {"messages": request.plain_messages},
        generate=start,
    )


def cache_salt(record: RequestRecord, salt: str | None) -> str:
    """Salt that separates a tenant's cached prompts there from others'; the tenant's own salt stays secret."""
    return sha256(f"{record.principal.cache_salt}/{salt or ''}".encode()).hexdigest()


def prompt_key(body: dict[str, object]) -> bytes:
    """The beginning of a prompt: what a server's prefix cache would find it by."""
    parts = (body.get("cache_salt"), body.get("tools"), body.get("messages") or body.get("prompt"))
    return json.dumps(parts, ensure_ascii=False).encode("utf-8", "surrogatepass")
