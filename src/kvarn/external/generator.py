"""The `Generator` of one model that other servers run."""

from __future__ import annotations

from kvarn.answers.chat.question import ChatPrompt, ChatQuestion
from kvarn.answers.completions import CompletionPrompt
from kvarn.answers.context import ServingContext
from kvarn.answers.generator import EmbeddingInputs, NamedInputs
from kvarn.answers.record import RequestRecord
from kvarn.answers.turn import Turn
from kvarn.catalog.models import ReadyModel
from kvarn.external.chat import count_external_chat, external_chat, prompt_key
from kvarn.external.completions import external_completion
from kvarn.external.embeddings import embed_external, external_inputs
from kvarn.external.model import ExternalModel
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.completions import CompletionRequest


class ExternalGenerator:
    """Sends requests to the other servers as they are."""

    def __init__(self, external: ExternalModel) -> None:
        self.external = external

    async def prompt_chat(
        self, serving: ServingContext, record: RequestRecord, question: ChatQuestion, model: ReadyModel
    ) -> ChatPrompt:
        """See `Generator`."""
        return await external_chat(serving, record, question, model, self.external)

    async def prompt_completion(
        self, serving: ServingContext, record: RequestRecord, request: CompletionRequest, model: ReadyModel
    ) -> CompletionPrompt:
        """See `Generator`."""
        return await external_completion(serving, record, request, model, self.external)

    async def count_chat_tokens(
        self, serving: ServingContext, record: RequestRecord, request: ChatCompletionRequest, model: ReadyModel
    ) -> int:
        """See `Generator`."""
        return await count_external_chat(serving, record, request, model, self.external)

    def embedding_inputs(
        self, model: ReadyModel, named: NamedInputs, max_tokens: int | None
    ) -> tuple[EmbeddingInputs, int]:
        """See `Generator`."""
        return external_inputs(self.external, named, max_tokens)

    def pick_embedder(self, model: ReadyModel, inputs: EmbeddingInputs) -> ReadyModel:
        """See `Generator`."""
        return self.external.picked(model, prompt_key({"prompt": inputs[0]}))

    async def embed(
        self, turn: Turn, model: ReadyModel, inputs: EmbeddingInputs, dimensions: int | None
    ) -> list[bytes]:
        """See `Generator`."""
        return await embed_external(self.external, inputs, turn, dimensions)
