"""What the two ways to answer a chat, with an engine and with another server, have in common."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial

from kvarn.answers.chat.answer import ChatRun
from kvarn.answers.chat.stored import keep_completion
from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.context import ServingContext
from kvarn.answers.held_bytes import HeldBytes
from kvarn.answers.moderation.checks import chat_texts
from kvarn.answers.work import Work
from kvarn.catalog.models import ReadyModel
from kvarn.clock import SYSTEM_CLOCK
from kvarn.wire.openai.chat.request import ChatCompletionRequest


async def check_messages(serving: ServingContext, request: ChatCompletionRequest, work: Work) -> None:
    """Have the messages logged where their project wants that, and moderated.

    Raises:
        ApiError: Moderation refuses them.
    """
    record, messages = work.record, request.plain_messages
    serving.prompts.offer(record.principal, record.request_id, work.model, lambda: {"messages": messages})
    await serving.moderation.check_input(work, partial(chat_texts, messages, request.active_tools), "messages")


def chat_run(
    serving: ServingContext,
    request: ChatCompletionRequest,
    model: ReadyModel,
    work: Work,
    deltas: AsyncGenerator[ChoiceDelta, None],
    prompt: list[int],
) -> ChatRun:
    """The answer to a chat whose work has begun; `prompt` is empty where another server tokenizes it."""
    record = work.record
    gathered = HeldBytes(serving.held, record)
    return ChatRun(
        id=f"chatcmpl-{record.id}",
        created=int(SYSTEM_CLOCK.time()),
        request=request,
        model=model,
        fingerprint=model.fingerprint,
        prompt=prompt,
        deltas=deltas,
        choices=work.sequences,
        work=work,
        held=gathered,
        store=(lambda answer: keep_completion(serving, record, request, answer, gathered.size // 2))
        if request.store
        else None,
    )
