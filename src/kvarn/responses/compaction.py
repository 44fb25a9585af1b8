"""Shortening a conversation: what the user said, and a summary of the rest that the model writes."""

from __future__ import annotations

from kvarn.answers.chat.operation import start_chat
from kvarn.answers.record import RequestRecord
from kvarn.responses.background_runs import ResponsesContext
from kvarn.responses.fitting import fitting_chat
from kvarn.responses.request import empty_input, in_response_terms
from kvarn.responses.turns import ResponseInput, read_input
from kvarn.responses.writer import item_id
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.openai.responses.answer import CompactedResponse, response_usage
from kvarn.wire.openai.responses.items import PREFIXES, encoded_summary, user_message
from kvarn.wire.openai.responses.request import CompactRequest

_ASK = (
    "Write a summary of this conversation for whoever goes on with it and sees nothing else: what was asked for, what "
    "was done and found so far (names of files, commands, results and decisions that matter), and what is left to do. "
    "Answer with the summary only."
)


async def compact(serving: ResponsesContext, record: RequestRecord, request: CompactRequest) -> CompactedResponse:
    """Shorten what a request goes on from and brings. Where it is longer than the model's context, the oldest items are
    left out of the summary."""
    response_id = f"resp_{record.id}"
    response_input = await read_input(serving, record, request, response_id)
    if not response_input.context:
        raise empty_input()
    asked = request.model_copy(update={"truncation": "auto", "tools": None, "tool_choice": None, "text": None})
    question = user_message(_ASK, item_id("msg_", response_id, len(response_input.items)))
    try:
        model = await serving.catalog.wait_for(record, request.model, "generate")
        summarized = ResponseInput(response_input.earlier, [*response_input.items, question])
        chat = await fitting_chat(serving, record, asked, summarized.context, model)
        run = await start_chat(serving, record, chat.model_copy(update={"service_tier": request.service_tier}))
        answer = await run.collect()
    except ApiError as error:
        raise in_response_terms(error) from None
    choice = answer.choices[0]
    summary = (choice.message.content or "").strip()
    if choice.finish_reason != "stop" or not summary:
        raise _no_summary(choice.finish_reason)
    said = [item for item in response_input.context if item["type"] == "message" and item["role"] == "user"]
    compaction = {
        "id": item_id(PREFIXES["compaction"], response_id, len(response_input.items)),
        "type": "compaction",
        "encrypted_content": encoded_summary(summary),
    }
    return CompactedResponse(
        id=response_id,
        created_at=int(serving.store.now()),
        output=[*said, compaction],
        usage=response_usage(run.turn.usage.as_openai()),
    )


def _no_summary(finish_reason: str) -> ApiError:
    """The 500 for a summary that is empty or cut off: with it the client would lose its conversation."""
    why = "is empty" if finish_reason == "stop" else f"was cut off ({finish_reason!r})"
    message = f"The model's summary {why}: keep the conversation as it is, and try again or with another model."
    return ApiError(500, message, type="server_error", code="summary_incomplete")
