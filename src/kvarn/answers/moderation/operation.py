"""Moderating texts for a client."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Coroutine

from kvarn.answers.context import ServingContext
from kvarn.answers.lifecycle import take_in
from kvarn.answers.moderation.checks import ALIASES
from kvarn.answers.record import RequestRecord
from kvarn.answers.turn import Prompt, Turn
from kvarn.catalog.models import BuiltInModel
from kvarn.identity.scopes import check_model
from kvarn.safety.verdict import Verdict
from kvarn.wire.openai.encoders import EmbeddingUsage, ModerationList, ModerationRequest, ModerationResult
from kvarn.wire.openai.errors import ApiError, invalid_request, model_not_found

_BYTES_PER_TOKEN = 4  # the classifier knows no tokens: a text's bytes are counted as so many


async def start_moderation(
    serving: ServingContext, record: RequestRecord, request: ModerationRequest
) -> Coroutine[None, None, ModerationList]:
    name = serving.moderation.moderator.name
    if request.model is not None and request.model not in ALIASES and request.model != name:
        raise model_not_found(request.model[:200], [name, *sorted(ALIASES)])
    limit, texts = serving.gateway_config.max_embedding_inputs, request.texts
    if len(texts) > limit:
        raise invalid_request(f"'input' has {len(texts)} items; this server takes at most {limit}.", "input")
    record.choice.name = name
    check_model(record.principal, name)
    size = sum(len(text.encode()) for text in texts)
    tokens = max(len(texts), -(-size // _BYTES_PER_TOKEN))
    model = BuiltInModel(name, "1", f"{platform.node()}/{name}")
    turn = await take_in(serving, record, Prompt(model=model, tokens=tokens))
    return _moderate(serving, record.id, texts, turn)


async def _moderate(serving: ServingContext, request_id: str, texts: list[str], turn: Turn) -> ModerationList:
    usage = turn.usage
    results = []
    try:
        for text in texts:
            results.append(_result(await serving.moderation.judge(text, turn)))
            await asyncio.sleep(0)  # a thousand short texts shall not keep the others waiting
    except ApiError:
        usage.failed = True
        raise
    usage.count(prompt=turn.prompt_tokens)
    usage.pending -= 1
    return ModerationList(
        id=f"modr-{request_id}",
        model=turn.model,
        results=results,
        usage=EmbeddingUsage(prompt_tokens=turn.prompt_tokens, total_tokens=turn.prompt_tokens),
    )


def _result(verdict: Verdict) -> ModerationResult:
    return ModerationResult(
        flagged=bool(verdict.flagged),
        categories=verdict.categories,
        category_scores=dict(verdict.scores),
        category_applied_input_types={name: ["text"] for name in verdict.scores},
    )
