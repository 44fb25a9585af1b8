"""The semantic part of the response cache: answers to questions that mean the same."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable

import msgspec

from kvarn.answers.packed_answer import unpacked
from kvarn.answers.stages.cache_keys import context_key, question_of
from kvarn.answers.turn import CacheUse, GeneratedPrompt, Turn
from kvarn.observe.response_cache import ResponseCacheMetrics
from kvarn.response_cache.gate import contents_of
from kvarn.response_cache.questions import AskedQuestion, Questions, Vector
from kvarn.response_cache.store import Answer, AnswerStore
from kvarn.store.owner import Principal
from kvarn.wire.openai.cache import CacheOptions

Embed = Callable[[Principal, str], Awaitable[tuple[str, Vector] | None]]
"""Embeds a question: the identity of the embedder, and a vector of length 1; None: it cannot now."""
_EMBED_S = 1.0
"""Seconds that embedding may take; then the model is asked."""
_PUNCTUATION = ".,;:!?…\"'“”„‘’«»()[]*_`。，、；：！？"
"""Signs that change no word that they stand before or behind; within words, and other signs, count."""


class SemanticCache:
    """Finds answers to questions that mean the same, and learns which do."""

    def __init__(self, store: AnswerStore, questions: Questions, embed: Embed, metrics: ResponseCacheMetrics) -> None:
        self._store = store
        self._embed = embed
        self._metrics = metrics
        self._questions = questions

    async def find(
        self, turn: Turn, prompt: GeneratedPrompt, caching: CacheUse, options: CacheOptions, more: str
    ) -> Answer | None:
        """The answer of the nearest question, where it may be given; else the model is asked, and `learn` compares."""
        question, principal = question_of(prompt.identity), turn.record.principal
        if question is None:
            return None
        try:
            async with asyncio.timeout(_EMBED_S):
                embedded = await self._embed(principal, question)
        except TimeoutError:
            embedded = None
        if embedded is None:
            self._metrics.comparisons.labels(turn.model, "not_embedded").inc()
            return None
        identity, vector = embedded
        parts = (context_key(turn, prompt, options, more), identity.encode(), contents_of(question))
        bucket = hashlib.blake2b(b"\0".join(parts), digest_size=16).digest()
        neighbour, answer = self._questions.nearest(principal, bucket, vector), None
        if neighbour is not None:
            answer = await self._store.get(principal, neighbour.known.key)
            if answer is None:
                self._questions.forget(principal, neighbour.known.key)
                neighbour = None
        if neighbour is not None and neighbour.may_answer:
            caching.similarity = neighbour.similarity
            return answer
        caching.asked = AskedQuestion(bucket, vector, neighbour, answer)
        return None

    def learn(self, turn: Turn, caching: CacheUse, answer: Answer) -> None:
        """Remember the question of an answer, and compare the answer with its neighbour's."""
        asked, principal = caching.asked, turn.record.principal
        if asked is None:
            return
        if asked.neighbour is not None and asked.answer is not None:
            right = words_of(asked.answer) == words_of(answer)
            self._questions.learn(principal, asked.neighbour, right)
            self._metrics.comparisons.labels(turn.model, "same" if right else "different").inc()
        self._questions.add(principal, asked.bucket, caching.key, asked.vector, caching.ttl_s)


def words_of(answer: Answer) -> dict[int, str] | None:
    """The words of each choice, without case and the punctuation around them; None: another version packed the
    answer."""
    found: dict[int, list[str]] = {}
    try:
        for delta in unpacked(answer.content):
            found.setdefault(delta.index, []).append(delta.written)
    except msgspec.DecodeError:
        return None
    return {index: _words("".join(texts)) for index, texts in found.items()}


def _words(text: str) -> str:
    stripped = (word.strip(_PUNCTUATION) for word in text.casefold().split())
    return " ".join(filter(None, stripped))
