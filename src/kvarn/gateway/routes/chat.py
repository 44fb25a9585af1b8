"""`/v1/chat/completions`."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.responses import Response

from kvarn.gateway.answer import event_stream, json_when_done
from kvarn.gateway.chat_choice import ChatCollector, ChatReader
from kvarn.gateway.chat_stream import ChunkHead, stream_chat
from kvarn.gateway.choice import Piece
from kvarn.gateway.context import gateway_of
from kvarn.gateway.generation import Generation, Tally
from kvarn.gateway.logprobs import prompt_logprobs
from kvarn.gateway.openapi import json_body
from kvarn.gateway.prompts import choices_of, submit_of
from kvarn.gateway.record import record_of
from kvarn.gateway.served import ReadyModel
from kvarn.text.sampling import chat_sampling, check_sampling, stop_strings
from kvarn.text.stop_strings import StopStrings
from kvarn.text.tools import make_tool_call_parser
from kvarn.wire.messages import PositionLogprobs
from kvarn.wire.openai.chat import ChatCompletionRequest
from kvarn.wire.openai.chat_answer import ChatCompletion

router = APIRouter(prefix="/v1/chat", tags=["chat"])


@router.post("/completions", summary="Answer a conversation", openapi_extra=json_body(ChatCompletionRequest))
async def create_chat_completion(request: Request) -> Response:
    """Answer the messages of a chat, as one object or as a stream of events."""
    gateway = gateway_of(request)
    asked = await gateway.read(request, ChatCompletionRequest)
    model = gateway.ready_model(request, asked.model, "generate")
    checked = await gateway.run(request, lambda: check_sampling(asked, model.tokenizer, gateway.limits))
    prompt = await gateway.run(request, lambda: _render(asked, model))
    sampling = chat_sampling(
        asked, checked, gateway.limits, prompt_tokens=len(prompt), context_length=model.card.max_context_length
    )
    answer_id, tally = f"chatcmpl-{uuid.uuid4().hex}", Tally()
    stops = StopStrings(stop_strings(asked, gateway.limits))
    choices = choices_of(asked, sampling, model, stops, continued=prompt if asked.continue_final_message else ())
    generation = Generation(model, submit_of(answer_id, prompt, sampling, asked), choices, tally)
    pieces = generation.pieces(gateway.metrics, record_of(request.scope).received)
    readers = [_reader(asked, model) for _ in choices]
    head = ChunkHead(answer_id, int(time.time()), model.name, asked.include_usage)
    if asked.stream:
        return event_stream(stream_chat(head, pieces, readers, tally))
    return json_when_done(_collect(head, asked, prompt, pieces, readers, tally, model))


async def _collect(
    head: ChunkHead,
    asked: ChatCompletionRequest,
    prompt: list[int],
    pieces: AsyncGenerator[Piece, None],
    readers: list[ChatReader],
    tally: Tally,
    model: ReadyModel,
) -> ChatCompletion:
    collectors = [ChatCollector(index, reader) for index, reader in enumerate(readers)]
    of_prompt: list[PositionLogprobs | None] | None = None
    async with aclosing(pieces):
        async for piece in pieces:
            collectors[piece.index].add(piece)
            of_prompt = piece.prompt_logprobs or of_prompt
    return ChatCompletion(
        id=head.id,
        created=head.created,
        model=head.model,
        choices=[collector.choice() for collector in collectors],
        usage=tally.usage(),
        prompt_logprobs=UNSET if of_prompt is None else prompt_logprobs(of_prompt, model.tokenizer),
        prompt_token_ids=prompt if asked.return_token_ids else UNSET,
    )


def _render(asked: ChatCompletionRequest, model: ReadyModel) -> list[int]:
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
