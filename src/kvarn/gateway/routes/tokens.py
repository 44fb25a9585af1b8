"""`/tokenize` and `/detokenize`: a model's tokenizer, in vLLM's shapes."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from kvarn.gateway.answer import json_response
from kvarn.gateway.context import Gateway, gateway_of
from kvarn.gateway.openapi import shapes
from kvarn.gateway.record import record_of
from kvarn.gateway.served import ReadyModel
from kvarn.text.prompt import chat_token_ids
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
    return json_response(await gateway.run(record, lambda: _tokenized(asked, model)))


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


def _tokenized(asked: TokenizeRequest, model: ReadyModel) -> TokenizeResponse:
    tokens = _tokenize(asked, model)
    return TokenizeResponse(
        count=len(tokens),
        max_model_len=model.card.max_context_length,
        tokens=tokens,
        token_strs=[model.tokenizer.token_text(token) for token in tokens] if asked.return_token_strs else None,
    )


def _tokenize(asked: TokenizeRequest, model: ReadyModel) -> list[int]:
    if asked.prompt is not None:
        return model.tokenizer.encode(asked.prompt, add_special_tokens=asked.add_special_tokens is not False)
    return chat_token_ids(
        model.chat_template,
        model.tokenizer,
        asked.plain_messages,
        tools=asked.active_tools,
        add_special_tokens=asked.add_special_tokens is True,
        add_generation_prompt=asked.add_generation_prompt,
        continue_final_message=asked.continue_final_message,
        variables=asked.chat_template_kwargs,
    )
