"""The generator of the engines of this server."""

from __future__ import annotations

import asyncio

from kvarn.answers.chat.operation import engine_chat
from kvarn.answers.chat.prompt import render_chat
from kvarn.answers.completion.operation import engine_completion
from kvarn.answers.context import ServingContext
from kvarn.answers.generation import check_token_ids
from kvarn.answers.generator import EmbeddingInputs, Generator, NamedInputs
from kvarn.answers.record import RequestRecord
from kvarn.answers.turn import Turn
from kvarn.catalog.failover import embed_anywhere
from kvarn.catalog.models import ReadyModel
from kvarn.replica.client.protocol import ReplicaLostError, RequestRefusedError
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.errors import ContextLengthError


async def count_chat_tokens(
    serving: ServingContext, record: RequestRecord, request: ChatCompletionRequest, model: ReadyModel
) -> int:
    return len(await render_chat(serving, record, request, model))


def embedding_inputs(model: ReadyModel, named: NamedInputs, max_tokens: int | None) -> tuple[EmbeddingInputs, int]:
    batch: list[list[int]] = []
    longest = model.card.max_context_length
    for position, (where, given) in enumerate(named):
        if isinstance(given, str):
            given = model.text.tokenizer.encode(given, add_special_tokens=True)
        if max_tokens is not None and position:
            given = given[:max_tokens]
        if len(given) > longest:
            raise ContextLengthError(longest, len(given), 0, where)
        check_token_ids(given, model, where)
        batch.append(given)
    return batch, sum(map(len, batch))


async def embed(turn: Turn, model: ReadyModel, inputs: EmbeddingInputs, dimensions: int | None) -> list[bytes]:
    """Vectors of the replica that was chosen for the turn, or of others where it is lost. Raises
    `RequestRefusedError` or `ReplicaLostError`."""
    assert turn.replica_choice is not None, "a stage has chosen a replica"
    usage, served, timeline = turn.usage, model.served, turn.record.timeline
    token_ids = [each for each in inputs if isinstance(each, list)]
    timeline.mark("sent")
    try:
        vectors = await embed_anywhere(
            served.replicas, turn.replica_choice, turn.engine_id, token_ids, served.config.failover
        )
    except (RequestRefusedError, ReplicaLostError):
        usage.failed = True
        raise
    except asyncio.CancelledError:  # the engine has been at it: as with an answer, leaving early is not free
        usage.count(prompt=turn.prompt_tokens)
        raise
    timeline.mark("generated")
    usage.count(prompt=turn.prompt_tokens)
    usage.pending -= 1
    return vectors


ENGINES = Generator(
    prompt_chat=engine_chat,
    prompt_completion=engine_completion,
    count_chat_tokens=count_chat_tokens,
    embedding_inputs=embedding_inputs,
    pick_embedder=lambda model, inputs: model,  # a stage chooses the replica
    embed=embed,
)
