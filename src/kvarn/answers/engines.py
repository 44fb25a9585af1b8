"""The `Generator` of the engines of this server."""

from __future__ import annotations

import asyncio

from kvarn.answers.chat.operation import engine_chat
from kvarn.answers.chat.prompt import render_chat
from kvarn.answers.chat.question import ChatPrompt, ChatQuestion
from kvarn.answers.completions import CompletionPrompt, engine_completion
from kvarn.answers.context import ServingContext
from kvarn.answers.generation import check_token_ids
from kvarn.answers.generator import EmbeddingInputs, NamedInputs
from kvarn.answers.record import RequestRecord
from kvarn.answers.turn import Turn
from kvarn.catalog.failover import embed_anywhere
from kvarn.catalog.models import ReadyModel
from kvarn.replica.client.protocol import ReplicaLostError, RequestRefusedError
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.completions import CompletionRequest
from kvarn.wire.openai.errors import ContextLengthError


class EngineGenerator:
    """Generates with the replica that was chosen for a turn, and with others where it is lost."""

    async def prompt_chat(
        self, serving: ServingContext, record: RequestRecord, question: ChatQuestion, model: ReadyModel
    ) -> ChatPrompt:
        """See `Generator`."""
        return await engine_chat(serving, record, question, model)

    async def prompt_completion(
        self, serving: ServingContext, record: RequestRecord, request: CompletionRequest, model: ReadyModel
    ) -> CompletionPrompt:
        """See `Generator`."""
        return await engine_completion(serving, record, request, model)

    async def count_chat_tokens(
        self, serving: ServingContext, record: RequestRecord, request: ChatCompletionRequest, model: ReadyModel
    ) -> int:
        """See `Generator`."""
        return len(await render_chat(serving, record, request, model))

    def embedding_inputs(
        self, model: ReadyModel, named: NamedInputs, max_tokens: int | None
    ) -> tuple[EmbeddingInputs, int]:
        """See `Generator`."""
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

    def pick_embedder(self, model: ReadyModel, inputs: EmbeddingInputs) -> ReadyModel:
        """See `Generator`: a stage chooses the replica."""
        return model

    async def embed(
        self, turn: Turn, model: ReadyModel, inputs: EmbeddingInputs, dimensions: int | None
    ) -> list[bytes]:
        """See `Generator`. Raises `RequestRefusedError` or `ReplicaLostError`."""
        assert turn.replica_choice is not None, "a stage has chosen a replica"
        usage, served = turn.usage, model.served
        token_ids = [each for each in inputs if isinstance(each, list)]
        turn.record.timeline.mark("sent")
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
        turn.record.timeline.mark("generated")
        usage.count(prompt=turn.prompt_tokens)
        usage.pending -= 1
        return vectors
