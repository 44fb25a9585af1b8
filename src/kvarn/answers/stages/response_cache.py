"""The response cache: gives an answer again that was given before, and keeps those that are given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.observer import AnswerListener, Observer
from kvarn.answers.packed_answer import joined_deltas, packed_delta, unpacked
from kvarn.answers.question import Question
from kvarn.answers.stages.cache_keys import answer_key, is_sampled, options_of
from kvarn.answers.stages.semantic_cache import Embed, SemanticCache
from kvarn.answers.turn import CacheUse, Deltas, GeneratedPrompt, Stage, Turn
from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.platform import SafetyConfig
from kvarn.config.response_cache import ResponseCacheConfig
from kvarn.observe.response_cache import ResponseCacheMetrics
from kvarn.response_cache.questions import Questions
from kvarn.response_cache.store import Answer, AnswerStore
from kvarn.wire.openai.cache import CacheOptions

_AT_ONCE = 64
"""Deltas that are given in one go, before others have their turn."""


class ResponseCacheStage(Observer):
    """Answers where the project's cache has the answer; as an observer it hears the others and keeps them.

    Args:
        config: The settings.
        safety: Settings of moderation: an answer that passed under others is not found.
        store: Keeps the answers.
        questions: Keeps their questions, for the semantic cache.
        settling: Stages that a turn goes through whose answer is found: limits and the ledger.
        embed: Embeds questions, for the semantic cache.
        metrics: Where hits and misses are counted.
    """

    name = "response_cache"

    def __init__(
        self,
        config: ResponseCacheConfig,
        safety: SafetyConfig,
        store: AnswerStore,
        questions: Questions,
        settling: Sequence[Stage],
        embed: Embed,
        metrics: ResponseCacheMetrics,
    ) -> None:
        self._config = config
        self._safety = safety.model_dump_json()
        self.store = store
        self._settling = settling
        self._metrics = metrics
        self._semantic = SemanticCache(store, questions, embed, metrics)

    async def enter(self, turn: Turn) -> Deltas | None:
        """Answer, or leave it to the model. Raises `ApiError`: limits refuse the answer that is here."""
        prompt = turn.prompt
        if not isinstance(prompt, GeneratedPrompt) or self._mode(turn) == "off":
            return None
        options = options_of(turn, prompt.identity)
        if (options.no_cache and options.no_store) or (not options.sampled and is_sampled(turn, prompt.identity)):
            self._tell(turn, "bypass")
            return None
        turn.caching = caching = CacheUse(answer_key(turn, prompt, options, self._safety))
        if not options.no_store:
            caching.ttl_s = min(options.ttl or self._config.ttl_s, self._config.ttl_s)
        found = None if options.no_cache else await self._find(turn, prompt, caching, options)
        if found is None:
            self._tell(turn, "bypass" if options.no_cache else "miss")
            return None
        return await self._give(turn, caching, *found)

    async def _find(
        self, turn: Turn, prompt: GeneratedPrompt, caching: CacheUse, options: CacheOptions
    ) -> tuple[Answer, list[ChoiceDelta]] | None:
        """The answer to the same request or, where the project and the request allow it, to one that means the same."""
        answer, caching.hit = await self.store.get(turn.record.principal, caching.key), "exact"
        if answer is None and options.semantic and self._mode(turn) == "semantic":
            answer, caching.hit = await self._semantic.find(turn, prompt, caching, options, self._safety), "semantic"
        try:
            if answer is not None and (options.s_maxage is None or _age_s(answer) <= options.s_maxage):
                return answer, unpacked(answer.content)
        except msgspec.DecodeError:  # of another version of Kvarn
            pass
        caching.hit = None
        return None

    def _mode(self, turn: Turn) -> str:
        return turn.record.principal.response_cache or self._config.mode

    async def _give(self, turn: Turn, caching: CacheUse, answer: Answer, deltas: list[ChoiceDelta]) -> Deltas:
        if caching.hit == "exact":
            turn.prompt_tokens = answer.prompt_tokens
        for stage in self._settling:
            await stage.enter(turn)
        self._tell(turn, "hit")
        turn.record.reply.headers |= {
            "x-kvarn-cache-kind": str(caching.hit),
            "x-kvarn-cache-age": str(int(_age_s(answer))),
        }
        if caching.hit == "semantic":
            turn.record.reply.headers["x-kvarn-cache-similarity"] = f"{caching.similarity:.3f}"
        self._metrics.seconds_saved.labels(turn.model).inc(answer.seconds)
        return _replayed(turn, answer, deltas)

    def listen(self, turn: Turn, question: Question[Any, Any]) -> AnswerListener | None:
        caching = turn.caching
        return None if caching is None or caching.hit or not caching.ttl_s else _Kept(self, turn, caching)

    def keep(self, turn: Turn, caching: CacheUse, deltas: list[bytes]) -> None:
        now, usage = SYSTEM_CLOCK.time(), turn.usage
        seconds = SYSTEM_CLOCK.now() - caching.began_s
        tokens = usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens
        answer = Answer(joined_deltas(deltas), now, seconds, *tokens)
        self.store.put(turn.record.principal, caching.key, answer, caching.ttl_s)
        self._semantic.learn(turn, caching, answer)

    @property
    def max_bytes(self) -> int:
        return self._config.max_answer_kib * 1024

    def _tell(self, turn: Turn, result: str) -> None:
        self._metrics.requests.labels(turn.model, result).inc()
        headers = turn.record.reply.headers
        headers["x-kvarn-cache"] = result
        if turn.caching is not None:
            headers["x-kvarn-cache-key"] = turn.caching.key.hex()


def _age_s(answer: Answer) -> float:
    return max(0.0, SYSTEM_CLOCK.time() - answer.created_at)


class _Kept(AnswerListener):
    """Gathers an answer, and has it kept once it is over: whole, not moderated, and not too large."""

    def __init__(self, stage: ResponseCacheStage, turn: Turn, caching: CacheUse) -> None:
        self._stage = stage
        self._turn = turn
        self._caching = caching
        self._running = turn.sequences
        self._bytes = 0
        self._deltas: list[bytes] | None = []

    def take(self, delta: ChoiceDelta) -> None:
        if self._deltas is None:
            return
        packed = b"" if delta.refusal else packed_delta(delta)
        self._bytes += len(packed)
        if not packed or self._bytes > self._stage.max_bytes:
            self._deltas = None
            return
        self._deltas.append(packed)
        self._running -= delta.finish_reason is not None

    def end(self, error: BaseException | None) -> None:
        if self._deltas is not None and not self._running and not self._turn.usage.failed:
            self._stage.keep(self._turn, self._caching, self._deltas)


async def _replayed(turn: Turn, answer: Answer, deltas: list[ChoiceDelta]) -> Deltas:
    usage = turn.usage  # what is told of token ids is counted by the lifecycle; another server's are not told
    completion = answer.completion_tokens - sum(len(delta.token_ids) for delta in deltas)
    reasoning = answer.reasoning_tokens - sum(delta.reasoning_tokens for delta in deltas)
    usage.count(completion=completion, reasoning=reasoning)
    for number, delta in enumerate(deltas):
        if number % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        yield delta
