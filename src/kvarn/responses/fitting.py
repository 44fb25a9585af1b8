"""The chat that answers a response's input, shortened where it is to fit into the model's context."""

from __future__ import annotations

from collections.abc import Sequence

from kvarn.answers.record import RequestRecord
from kvarn.catalog.models import ReadyModel
from kvarn.responses.background_runs import ResponsesContext
from kvarn.responses.request import NO_HOSTED, chat_request
from kvarn.text.errors import PromptTooLongError
from kvarn.tools.registry import OfferedTools
from kvarn.wire.openai.chat.messages import Message
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.responses.items import OUTPUTS, StoredItem
from kvarn.wire.openai.responses.request import ContextFields, ResponseRequest

_MIN_ANSWER_TOKENS = 256
"""Tokens left for the answer where `max_output_tokens` does not say; at most a quarter of the context."""


async def chat_of(
    serving: ResponsesContext,
    record: RequestRecord,
    request: ResponseRequest,
    items: list[StoredItem],
    seed: int | None,
    hosted: OfferedTools = NO_HOSTED,
    extra: Sequence[Message] = (),
) -> ChatCompletionRequest:
    """The chat that answers items; it fits where the request wants that."""
    if request.truncation == "auto":
        model = await serving.catalog.wait_for(record, request.model, "generate")
        return await fitting_chat(serving, record, request, items, model, seed, hosted, extra)
    chat = await serving.run(record, lambda: chat_request(request, request.model, items, seed, hosted))
    return _with(chat, extra)


async def fitting_chat(
    serving: ResponsesContext,
    record: RequestRecord,
    request: ContextFields,
    items: list[StoredItem],
    model: ReadyModel,
    seed: int | None = None,
    hosted: OfferedTools = NO_HOSTED,
    extra: Sequence[Message] = (),
) -> ChatCompletionRequest:
    """The chat that answers items, with `extra` messages behind. With `truncation: auto` it lacks the oldest items, as
    few as must be left out for the prompt to fit, never the instructions; a result is not left without its call."""

    async def chat_from(start: int) -> ChatCompletionRequest:
        chat = await serving.run(record, lambda: chat_request(request, model.public_name, items[start:], seed, hosted))
        return _with(chat, extra)

    async def fits(chat: ChatCompletionRequest) -> bool:
        try:
            return await serving.steps.generator_of(model).count_chat_tokens(serving, record, chat, model) <= max_prompt
        except PromptTooLongError:
            return False

    whole = await chat_from(0)
    starts = [index for index, item in enumerate(items) if item["type"] not in OUTPUTS]
    max_prompt = _max_prompt_tokens(request, model.card.max_context_length)
    if request.truncation != "auto" or not starts or not model.card.max_context_length or await fits(whole):
        return whole
    too_early, late_enough = 0, len(starts) - 1  # where even the last item is too long, nothing helps
    while late_enough - too_early > 1:
        middle = (too_early + late_enough) // 2
        if await fits(await chat_from(starts[middle])):
            late_enough = middle
        else:
            too_early = middle
    return await chat_from(starts[late_enough])


def _with(chat: ChatCompletionRequest, extra: Sequence[Message]) -> ChatCompletionRequest:
    return chat.model_copy(update={"messages": [*chat.messages, *extra]}) if extra else chat


def _max_prompt_tokens(request: ContextFields, context: int) -> int:
    answer = request.max_output_tokens if isinstance(request, ResponseRequest) else None
    return context - (answer or min(_MIN_ANSWER_TOKENS, context // 4))
