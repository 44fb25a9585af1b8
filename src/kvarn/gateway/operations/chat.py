"""Answering a chat."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from msgspec import UNSET

from kvarn.gateway.chat_choice import ChatCollector, ChatReader
from kvarn.gateway.chat_stream import ChunkHead, stream_chat
from kvarn.gateway.choice import Piece
from kvarn.gateway.context import Gateway
from kvarn.gateway.fallback import start_on_model
from kvarn.gateway.generation import Generation
from kvarn.gateway.logprobs import prompt_logprobs
from kvarn.gateway.prompts import choices_of, submit_of
from kvarn.gateway.record import RequestRecord
from kvarn.gateway.served import ReadyModel
from kvarn.gateway.tiers import tier_of
from kvarn.gateway.work import Tally
from kvarn.text.sampling import chat_sampling, check_sampling, stop_strings
from kvarn.text.stop_strings import StopStrings
from kvarn.text.tools import make_tool_call_parser
from kvarn.wire.messages import PositionLogprobs
from kvarn.wire.openai.chat import ChatCompletionRequest
from kvarn.wire.openai.chat_answer import ChatCompletion


@dataclass(frozen=True, slots=True)
class ChatRun:
    """A chat that has been taken: its prompt is made, its work begun, the engine not yet asked.

    Take `pieces` (one reader for each choice turns them into parts), or let `stream` or `collect` do it.
    """

    head: ChunkHead
    asked: ChatCompletionRequest
    prompt: list[int]
    pieces: AsyncGenerator[Piece, None]
    readers: list[ChatReader]
    tally: Tally
    model: ReadyModel

    def stream(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events."""
        return stream_chat(self.head, self.pieces, self.readers, self.tally)

    async def collect(self) -> ChatCompletion:
        """The answer as one object."""
        collectors = [ChatCollector(index, reader) for index, reader in enumerate(self.readers)]
        of_prompt: list[PositionLogprobs | None] | None = None
        async with aclosing(self.pieces) as pieces:
            async for piece in pieces:
                collectors[piece.index].add(piece)
                of_prompt = piece.prompt_logprobs or of_prompt
        return ChatCompletion(
            id=self.head.id,
            created=self.head.created,
            model=self.head.model,
            choices=[collector.choice() for collector in collectors],
            usage=self.tally.usage(),
            service_tier=self.head.service_tier,
            prompt_logprobs=UNSET if of_prompt is None else prompt_logprobs(of_prompt, self.model.tokenizer),
            prompt_token_ids=self.prompt if self.asked.return_token_ids else UNSET,
        )


async def start_chat(gateway: Gateway, record: RequestRecord, asked: ChatCompletionRequest) -> ChatRun:
    """Check a chat, render and tokenize its prompt, and take it in.

    Raises:
        ApiError: It cannot be answered as asked, or not now.
        ChatTemplateError: The model's template refuses the messages.
    """
    return await start_on_model(gateway, record, asked.model, lambda model: _start(gateway, record, asked, model))


async def _start(gateway: Gateway, record: RequestRecord, asked: ChatCompletionRequest, model: ReadyModel) -> ChatRun:
    checked = await gateway.run(record, lambda: check_sampling(asked, model.tokenizer, gateway.limits))
    prompt = await gateway.run(record, lambda: render_chat(asked, model))
    sampling = chat_sampling(
        asked, checked, gateway.limits, prompt_tokens=len(prompt), context_length=model.card.max_context_length
    )
    work = await gateway.begin(
        record,
        model,
        prompt_tokens=len(prompt),
        max_output_tokens=sampling.max_tokens * sampling.n,
        sequences=sampling.n,
        priority=asked.priority,
        service_tier=asked.service_tier,
    )
    answer_id = f"chatcmpl-{uuid.uuid4().hex}"
    stops = StopStrings(stop_strings(asked, gateway.limits))
    choices = choices_of(asked, sampling, model, stops, continued=prompt if asked.continue_final_message else ())
    submit = submit_of(answer_id, prompt, sampling, work, asked.cache_salt)
    generation = Generation(model, submit, choices, work.tally)
    return ChatRun(
        ChunkHead(
            answer_id,
            int(time.time()),
            model.name,
            asked.include_usage,
            UNSET if asked.service_tier is None else tier_of(work.priority),
        ),
        asked,
        prompt,
        generation.pieces(gateway.metrics, record.received),
        [_reader(asked, model) for _ in choices],
        work.tally,
        model,
    )


def render_chat(asked: ChatCompletionRequest, model: ReadyModel) -> list[int]:
    """The prompt of a chat, in tokens.

    Raises:
        ChatTemplateError: The model's template refuses the messages.
    """
    text = model.chat_template.render(
        asked.plain_messages,
        tools=asked.active_tools,
        add_generation_prompt=asked.add_generation_prompt,
        continue_final_message=asked.continue_final_message,
        **(asked.chat_template_kwargs or {}),
    )
    return model.tokenizer.encode(text, add_special_tokens=bool(asked.add_special_tokens))


def _reader(asked: ChatCompletionRequest, model: ReadyModel) -> ChatReader:
    final = asked.plain_messages[-1]["content"] if asked.echo else ""
    return ChatReader(
        model.tokenizer,
        make_tool_call_parser() if asked.active_tools else None,
        (asked.top_logprobs or 0) if asked.logprobs else None,
        asked.return_token_ids,
        opening=final if isinstance(final, str) else "\n".join(part["text"] for part in final or []),
    )
