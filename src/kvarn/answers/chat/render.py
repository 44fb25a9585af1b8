"""The prompt that a chat has, and how its answer would be drawn, without an answer."""

from __future__ import annotations

from kvarn.answers.chat.prompt import render_chat
from kvarn.answers.context import ServingContext
from kvarn.answers.record import RequestRecord
from kvarn.text.sampling import chat_sampling, check_sampling
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.tokenize import RenderedChat


async def render_only(serving: ServingContext, record: RequestRecord, request: ChatCompletionRequest) -> RenderedChat:
    """Check a chat as if it were answered, and show what its engine would get. Raises as `start_chat` does."""
    model = serving.catalog.ready(record, request.model, "generate")
    text = model.text
    checked = await serving.run(
        record, lambda: check_sampling(request, text.tokenizer, serving.limits, text.sampling_defaults)
    )
    token_ids = await render_chat(serving, record, request, model)
    sampling = chat_sampling(
        request,
        checked,
        serving.limits,
        prompt_tokens=len(token_ids),
        context_length=model.card.max_context_length,
        draw_seed=lambda: checked.seed,
    )
    return RenderedChat(
        request_id=f"chatcmpl-{record.id}",
        model=model.public_name,
        token_ids=token_ids,
        sampling_params=sampling,
        stream=bool(request.stream),
        priority=request.priority,
        cache_salt=request.cache_salt,
    )
