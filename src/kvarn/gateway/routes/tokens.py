"""`/tokenize`, `/detokenize` and `/tokenizer_info`: a model's tokenizer, in vLLM's shapes."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import Field

from kvarn.answers.record import RequestRecord
from kvarn.catalog.models import ReadyModel
from kvarn.gateway.dependencies import GatewayDep, RecordDep
from kvarn.gateway.openapi import json_router
from kvarn.gateway.query import CHECKED, QueryModel, Text
from kvarn.gateway.state import Gateway
from kvarn.text.checkpoint import resolve_tokenizer
from kvarn.text.config_files import read_tokenizer_config
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.openai.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)

router = json_router("", "tokens")


class TokenizerQuery(QueryModel):
    model: Text | None = Field(None, description="The model's name. Default: the first that is served.")


@router.post("/tokenize", summary="Text or messages to token ids")
async def tokenize(gateway: GatewayDep, record: RecordDep, body: TokenizeRequest) -> TokenizeResponse:
    """Tokenize a prompt, or the messages of a chat as the model would see them."""
    model = gateway.catalog.ready(record, body.model or _default(gateway))
    tokens = await _tokenize(gateway, record, body, model)

    def answer() -> TokenizeResponse:
        texts = [model.text.tokenizer.token_text(token) for token in tokens] if body.return_token_strs else None
        max_length = model.card.max_context_length
        return TokenizeResponse(count=len(tokens), max_model_len=max_length, tokens=tokens, token_strs=texts)

    return await gateway.text.run(record.principal.organization_id, len(tokens), answer)


@router.post("/detokenize", summary="Token ids to text")
async def detokenize(gateway: GatewayDep, record: RecordDep, body: DetokenizeRequest) -> DetokenizeResponse:
    """The text of token ids, special tokens included."""
    model = gateway.catalog.ready(record, body.model or _default(gateway))
    text = await gateway.run(record, lambda: model.text.tokenizer.decode(body.tokens, skip_special_tokens=False))
    return DetokenizeResponse(prompt=text)


@router.get("/tokenizer_info", summary="A model's tokenizer", dependencies=CHECKED)
async def tokenizer_info(gateway: GatewayDep, record: RecordDep, query: TokenizerQuery) -> dict[str, Any]:
    """Answer with the checkpoint's tokenizer_config.json and the chat template that is used."""
    model = gateway.catalog.ready(record, query.model or _default(gateway))
    served, template = model.served, model.text.chat_template

    def read() -> dict[str, Any]:
        directory = resolve_tokenizer(served.config.tokenizer) if served.config.tokenizer else served.directory
        return read_tokenizer_config(directory)

    return {**await asyncio.to_thread(read), "chat_template": template.source if template.exists else None}


def _default(gateway: Gateway) -> str:
    model = next(iter(gateway.models), None)
    if model is None:
        why = "No model is served here: deploy one, or name one in the server's configuration ('models')."
        raise ApiError(404, why, code="model_not_found", param="model")
    return model.name


async def _tokenize(gateway: Gateway, record: RequestRecord, body: TokenizeRequest, model: ReadyModel) -> list[int]:
    prompt = body.prompt
    if prompt is not None:
        special = body.add_special_tokens is not False
        return await gateway.run(record, lambda: model.text.tokenizer.encode(prompt, add_special_tokens=special))
    return await model.render(
        gateway.text,
        record.principal.organization_id,
        record.body_bytes,
        lambda: body.plain_messages,
        tools=body.active_tools,
        add_special_tokens=body.add_special_tokens is True,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=body.chat_template_kwargs,
    )
