"""Generators make the deltas of answers: the engines of this server, or other servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvarn.config.routes import FallbackReason
from kvarn.wire.openai.errors import ApiError

if TYPE_CHECKING:
    from kvarn.answers.chat.operation import ChatPrompt, ChatQuestion
    from kvarn.answers.completion.operation import CompletionPrompt
    from kvarn.answers.context import ServingContext
    from kvarn.answers.record import RequestRecord
    from kvarn.answers.turn import Turn
    from kvarn.catalog.models import ReadyModel
    from kvarn.wire.openai.chat.request import ChatCompletionRequest
    from kvarn.wire.openai.completions import CompletionRequest

NamedInputs = Sequence[tuple[str, str | list[int]]]
"""Inputs of an embedding, text or token ids, each with the name of its field."""
EmbeddingInputs = Sequence[list[int]] | Sequence[str | list[int]]
"""Token ids, or texts where another server tokenizes them."""


@dataclass(frozen=True, slots=True)
class Generator:
    """Functions that make prompts and deltas. They refuse with an `ApiError`."""

    prompt_chat: Callable[[ServingContext, RequestRecord, ChatQuestion, ReadyModel], Awaitable[ChatPrompt]]
    prompt_completion: Callable[
        [ServingContext, RequestRecord, CompletionRequest, ReadyModel], Awaitable[CompletionPrompt]
    ]
    count_chat_tokens: Callable[[ServingContext, RequestRecord, ChatCompletionRequest, ReadyModel], Awaitable[int]]
    """The tokens of a chat's prompt: exact where the model's template is here, else estimated."""
    embedding_inputs: Callable[[ReadyModel, NamedInputs, int | None], tuple[EmbeddingInputs, int]]
    """Inputs as they are embedded and their number of tokens; those after the first are cut to the number given."""
    pick_embedder: Callable[[ReadyModel, EmbeddingInputs], ReadyModel]
    """The model with the replica that would embed these inputs now."""
    embed: Callable[[Turn, ReadyModel, EmbeddingInputs, int | None], Awaitable[list[bytes]]]
    """Vectors of inputs, float32 little-endian, counted to the turn; the number is their size, where it is given."""


class GeneratorFailedError(Exception):
    """A generator could not answer; another model may."""

    @property
    def fallback_reason(self) -> FallbackReason:
        """Why, in the words of `FallbackConfig.on`."""
        return "error"

    @property
    def api_error(self) -> ApiError:
        """The error for the client; the log has the reason, which may name addresses."""
        raise NotImplementedError
