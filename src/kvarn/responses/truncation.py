"""Which of a turn's items fit into the model's context."""

from __future__ import annotations

from kvarn.responses.background_runs import ResponsesContext
from kvarn.responses.request import chat_request
from kvarn.responses.turns import Turn
from kvarn.serving.chat.prompt import render_chat
from kvarn.serving.models import ReadyModel
from kvarn.serving.work import RequestRecord
from kvarn.text.errors import PromptTooLongError
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.responses.request import ContextFields, ResponseRequest

_MIN_ANSWER_TOKENS = 256
"""Tokens left for the answer where `max_output_tokens` does not say; at most a quarter of the context."""


async def fitting_chat(
    serving: ResponsesContext,
    record: RequestRecord,
    request: ContextFields,
    turn: Turn,
    model: ReadyModel,
    seed: int | None = None,
) -> ChatCompletionRequest:
    """The chat that answers a turn. With `truncation: auto` it lacks the oldest items, as few as must be left out for
    the prompt to fit, never the instructions; a result is not left without its call.

    Raises:
        ApiError: 400, the chat cannot be request for.
        ChatTemplateError: The model's template refuses the messages.
    """
    items = turn.context

    async def chat_from(start: int) -> ChatCompletionRequest:
        return await serving.run(record, lambda: chat_request(request, model.name, items[start:], seed))

    async def fits(chat: ChatCompletionRequest) -> bool:
        try:
            return len(await render_chat(serving, record, chat, model)) <= max_prompt
        except PromptTooLongError:
            return False

    whole = await chat_from(0)
    starts = [index for index, item in enumerate(items) if item["type"] != "function_call_output"]
    max_prompt = _max_prompt_tokens(request, model.card.max_context_length)
    if request.truncation != "auto" or not starts or await fits(whole):
        return whole
    too_early, late_enough = 0, len(starts) - 1  # where even the last item is too long, nothing helps
    while late_enough - too_early > 1:
        middle = (too_early + late_enough) // 2
        if await fits(await chat_from(starts[middle])):
            late_enough = middle
        else:
            too_early = middle
    return await chat_from(starts[late_enough])


def _max_prompt_tokens(request: ContextFields, context: int) -> int:
    answer = request.max_output_tokens if isinstance(request, ResponseRequest) else None
    return context - (answer or min(_MIN_ANSWER_TOKENS, context // 4))
