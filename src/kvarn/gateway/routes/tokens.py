"""`/tokenize` and `/detokenize`: a model's tokenizer, in vLLM's shapes."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.answer import json_response
from kvarn.gateway.openapi import shapes
from kvarn.gateway.record import record_of
from kvarn.gateway.state import Gateway, gateway_of
from kvarn.serving.models import ReadyModel
from kvarn.serving.record import RequestRecord
from kvarn.serving.rendering import render_token_ids
from kvarn.text.prompt import PromptBuilder
from kvarn.wire.openai.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)

router = APIRouter(tags=["tokens"])


@router.post("/tokenize", summary="Text or messages to token ids")
@shapes(TokenizeResponse, TokenizeRequest)
async def tokenize(request: Request) -> Response:
    """Tokenize a prompt, or the messages of a chat as the model would see them."""
    gateway, record = gateway_of(request), record_of(request.scope)
    asked = await gateway.read(request, TokenizeRequest)
    model = gateway.ready_model(record, asked.model or _default(gateway))
    tokens = await _tokenize(gateway, record, asked, model)
    tenant = record.principal.organization_id
    return json_response(await gateway.text.run(tenant, len(tokens), lambda: _answer(asked, model, tokens)))


@router.post("/detokenize", summary="Token ids to text")
@shapes(DetokenizeResponse, DetokenizeRequest)
async def detokenize(request: Request) -> Response:
    """The text of token ids, special tokens included."""
    gateway, record = gateway_of(request), record_of(request.scope)
    asked = await gateway.read(request, DetokenizeRequest)
    model = gateway.ready_model(record, asked.model or _default(gateway))
    text = await gateway.run(
        record_of(request.scope), lambda: model.tokenizer.decode(asked.tokens, skip_special_tokens=False)
    )
    return json_response(DetokenizeResponse(prompt=text))


def _default(gateway: Gateway) -> str:
    return next(iter(gateway.models)).name


def _answer(asked: TokenizeRequest, model: ReadyModel, tokens: list[int]) -> TokenizeResponse:
    return TokenizeResponse(
        count=len(tokens),
        max_model_len=model.card.max_context_length,
        tokens=tokens,
        token_strs=[model.tokenizer.token_text(token) for token in tokens] if asked.return_token_strs else None,
    )


async def _tokenize(gateway: Gateway, record: RequestRecord, asked: TokenizeRequest, model: ReadyModel) -> list[int]:
    prompt = asked.prompt
    if prompt is not None:
        around = asked.add_special_tokens is not False
        return await gateway.run(record, lambda: model.tokenizer.encode(prompt, add_special_tokens=around))
    return await render_token_ids(
        gateway.text,
        record.principal.organization_id,
        record.body_bytes,
        model,
        lambda: PromptBuilder(
            model.chat_template,
            model.tokenizer,
            asked.plain_messages,
            context_length=model.card.max_context_length,
            tools=asked.active_tools,
            add_special_tokens=asked.add_special_tokens is True,
            add_generation_prompt=asked.add_generation_prompt,
            continue_final_message=asked.continue_final_message,
            variables=asked.chat_template_kwargs,
        ),
    )
