"""A chat as the lifecycle asks it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvarn.answers.chat.answer import ChatRun
from kvarn.answers.chat.stored import keep_completion
from kvarn.answers.held_bytes import HeldBytes
from kvarn.answers.model_routes import BYTES_PER_TOKEN
from kvarn.answers.moderation.texts import chat_texts
from kvarn.answers.question import Question
from kvarn.answers.record import RequestRecord
from kvarn.answers.turn import Deltas, GeneratedPrompt, Turn
from kvarn.catalog.models import ReadyModel
from kvarn.clock import SYSTEM_CLOCK
from kvarn.routing.model_choice import RequestFeatures
from kvarn.wire.openai.chat.request import ChatCompletionRequest

if TYPE_CHECKING:
    from kvarn.answers.context import ServingContext


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt(GeneratedPrompt):
    shown: list[int]  # its tokens; empty where another server tokenizes it


@dataclass(frozen=True, slots=True)
class ChatQuestion(Question[ChatCompletionRequest, ChatRun]):
    """A chat; `context`: tokens that stand before its prompt."""

    context: Sequence[int] = ()
    NOT_COPIED = {"store": None, "service_tier": None, "priority": 0}  # noqa: RUF012

    def features(self, record: RequestRecord) -> RequestFeatures:
        request = self.request
        written = sum(len(text.encode()) for text in chat_texts(request.plain_messages, request.active_tools))
        return RequestFeatures(
            prompt_tokens=math.ceil(written / BYTES_PER_TOKEN),
            max_output_tokens=request.max_completion_tokens or request.max_tokens,
            tools=request.tool_use is not None,
            reasoning_effort=request.reasoning_effort,
        )

    async def prompt(self, serving: ServingContext, record: RequestRecord, model: ReadyModel) -> ChatPrompt:
        return await serving.steps.generator_of(model).prompt_chat(serving, record, self, model)

    def run(self, serving: ServingContext, turn: Turn, prompt: GeneratedPrompt, deltas: Deltas) -> ChatRun:
        record, request, model = turn.record, self.request, prompt.model
        assert isinstance(prompt, ChatPrompt) and isinstance(model, ReadyModel)
        gathered = HeldBytes(serving.held, record)
        keep = None
        if request.store:
            keep = lambda answer: keep_completion(serving, record, request, answer, gathered.size // 2)  # noqa: E731
        return ChatRun(
            id=f"chatcmpl-{record.id}",
            created=int(SYSTEM_CLOCK.time()),
            request=request,
            model=model,
            fingerprint=model.fingerprint,
            prompt=prompt.shown,
            deltas=deltas,
            choices=turn.sequences,
            turn=turn,
            held=gathered,
            store=keep,
        )
