"""A question: a request for an answer that a model generates, as the lifecycle asks it."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from kvarn.answers.record import RequestRecord
from kvarn.answers.turn import Deltas, GeneratedPrompt, Turn
from kvarn.catalog.models import ReadyModel
from kvarn.routing.model_choice import RequestFeatures
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.completions import CompletionRequest

if TYPE_CHECKING:
    from kvarn.answers.context import ServingContext

RunT_co = TypeVar("RunT_co", covariant=True)
RequestT = TypeVar("RequestT", ChatCompletionRequest, CompletionRequest)


@dataclass(frozen=True, slots=True)
class Question(ABC, Generic[RequestT, RunT_co]):
    """A request; `request.model` names a model, an adapter or a route."""

    request: RequestT
    NOT_COPIED: ClassVar[dict[str, Any]] = {}
    """Fields of the request that a copy for comparison has not: what is stored, or paid for."""

    def with_seed(self) -> Self:
        """Give the question a seed, so that it may be repeated."""
        return self if self.request.seed is not None else self._changed(seed=secrets.randbits(63))

    def copy_for(self, model: str) -> Self:
        return self._changed(**self.NOT_COPIED, model=model)

    def _changed(self, **changes: Any) -> Self:
        return replace(self, request=self.request.model_copy(update=changes))

    @abstractmethod
    def features(self, record: RequestRecord) -> RequestFeatures:
        """Features that decide which target of a route answers."""

    @abstractmethod
    async def prompt(self, serving: ServingContext, record: RequestRecord, model: ReadyModel) -> GeneratedPrompt:
        """Check the question and make its prompt. Raises `ApiError` or `ChatTemplateError`."""

    @abstractmethod
    def run(self, serving: ServingContext, turn: Turn, prompt: GeneratedPrompt, deltas: Deltas) -> RunT_co:
        """The answer in the question's own form."""
