"""Protocol of whoever makes the deltas of answers: the engines of this server, or other servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from kvarn.config.routes import FallbackReason
from kvarn.wire.openai.errors import ApiError

if TYPE_CHECKING:
    from kvarn.answers.chat.question import ChatPrompt, ChatQuestion
    from kvarn.answers.completions import CompletionPrompt
    from kvarn.answers.context import ServingContext
    from kvarn.answers.record import RequestRecord
    from kvarn.answers.turn import Turn
    from kvarn.catalog.models import ReadyModel
    from kvarn.wire.openai.chat.request import ChatCompletionRequest
    from kvarn.wire.openai.completions import CompletionRequest

NamedInputs = Sequence[tuple[str, str | list[int]]]
"""Inputs of an embedding, text or token ids, each with the name of its field."""
EmbeddingInputs = Sequence[list[int]] | Sequence[str | list[int]]
"""What is embedded: token ids, or texts where another server tokenizes them."""


class Generator(Protocol):
    """Checks requests for a model, makes their prompts, and generates. Whatever it refuses it refuses as `ApiError`."""

    async def prompt_chat(
        self, serving: ServingContext, record: RequestRecord, question: ChatQuestion, model: ReadyModel
    ) -> ChatPrompt:
        """Check a chat and make its prompt."""
        ...

    async def prompt_completion(
        self, serving: ServingContext, record: RequestRecord, request: CompletionRequest, model: ReadyModel
    ) -> CompletionPrompt:
        """Check a text completion and make its prompts."""
        ...

    async def count_chat_tokens(
        self, serving: ServingContext, record: RequestRecord, request: ChatCompletionRequest, model: ReadyModel
    ) -> int:
        """The tokens of a chat's prompt: exact where the model's template is here, else estimated."""
        ...

    def embedding_inputs(
        self, model: ReadyModel, named: NamedInputs, max_tokens: int | None
    ) -> tuple[EmbeddingInputs, int]:
        """What is embedded, and how many tokens that is; inputs after the first are cut to `max_tokens`."""
        ...

    def pick_embedder(self, model: ReadyModel, inputs: EmbeddingInputs) -> ReadyModel:
        """The model with the replica that would embed these inputs now."""
        ...

    async def embed(
        self, turn: Turn, model: ReadyModel, inputs: EmbeddingInputs, dimensions: int | None
    ) -> list[bytes]:
        """Vectors of inputs, float32 little-endian, counted to the turn."""
        ...


class GeneratorFailedError(Exception):
    """A generator could not answer; another model may."""

    @property
    def fallback_reason(self) -> FallbackReason:
        """Why, in the words of `FallbackConfig.on`."""
        return "error"

    @property
    def api_error(self) -> ApiError:
        """What the client is told; the log has the reason, which may name addresses."""
        raise NotImplementedError
