"""The response cache: gives an answer again that was given before, and keeps those that are given."""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.observer import AnswerListener, Observer
from kvarn.answers.packed_answer import joined_deltas, packed_delta, unpacked
from kvarn.answers.question import Question
from kvarn.answers.turn import AnswerIdentity, CacheUse, Deltas, GeneratedPrompt, Stage, Turn
from kvarn.catalog.models import ReadyModel
from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.platform import SafetyConfig
from kvarn.config.response_cache import ResponseCacheConfig
from kvarn.observe.response_cache import ResponseCacheMetrics
from kvarn.response_cache.store import Answer, AnswerStore
from kvarn.wire.openai.cache import CacheOptions
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.sampling import SamplingParams

_NO_PART = {
    *("model", "stream", "stream_options", "seed", "user", "safety_identifier", "metadata", "store", "service_tier"),
    *("priority", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "agent_hint"),
    *("retention_directives", "cache"),
}
"""Fields of requests that have no part in the answer, or of which the key has something better."""
_AT_ONCE = 64
"""Deltas that are given in one go, before others have their turn."""


class ResponseCacheStage(Observer):
    """Answers where the project's cache has the answer; as an observer it hears the others and keeps them.

    Args:
        config: The settings.
        safety: Settings of moderation: an answer that passed under others is not found.
        store: Keeps the answers.
        settling: Stages that a turn goes through whose answer is found: limits and the ledger.
        metrics: Where hits and misses are counted.
    """

    name = "response_cache"

    def __init__(
        self,
        config: ResponseCacheConfig,
        safety: SafetyConfig,
        store: AnswerStore,
        settling: Sequence[Stage],
        metrics: ResponseCacheMetrics,
    ) -> None:
        self._config = config
        self._safety = safety.model_dump_json()
        self.store = store
        self._settling = settling
        self._metrics = metrics

    async def enter(self, turn: Turn) -> Deltas | None:
        """Answer, or leave it to the model. Raises `ApiError`: limits refuse the answer that is here."""
        prompt, principal = turn.prompt, turn.record.principal
        if not isinstance(prompt, GeneratedPrompt) or (principal.response_cache or self._config.mode) == "off":
            return None
        options = options_of(turn, prompt.identity)
        if (options.no_cache and options.no_store) or (not options.sampled and is_sampled(prompt.identity)):
            self._tell(turn, "bypass")
            return None
        turn.caching = caching = CacheUse(answer_key(turn, prompt, options, self._safety))
        if not options.no_store:
            caching.ttl_s = min(options.ttl or self._config.ttl_s, self._config.ttl_s)
        found = None if options.no_cache else await self._find(turn, caching.key, options)
        if found is None:
            self._tell(turn, "bypass" if options.no_cache else "miss")
            return None
        caching.hit = "exact"
        return await self._give(turn, *found)

    async def _find(self, turn: Turn, key: bytes, options: CacheOptions) -> tuple[Answer, list[ChoiceDelta]] | None:
        answer = await self.store.get(turn.record.principal, key)
        if answer is None or (options.s_maxage is not None and _age_s(answer) > options.s_maxage):
            return None
        try:
            return answer, unpacked(answer.content)
        except msgspec.DecodeError:  # of another version of Kvarn
            return None

    async def _give(self, turn: Turn, answer: Answer, deltas: list[ChoiceDelta]) -> Deltas:
        turn.prompt_tokens = answer.prompt_tokens
        for stage in self._settling:
            await stage.enter(turn)
        self._tell(turn, "hit")
        turn.record.reply.headers["x-kvarn-cache-age"] = str(int(_age_s(answer)))
        self._metrics.seconds_saved.labels(turn.model).inc(answer.seconds)
        return _replayed(turn, answer, deltas)

    def listen(self, turn: Turn, question: Question[Any, Any]) -> AnswerListener | None:
        """Hear an answer that is to be kept."""
        caching = turn.caching
        return None if caching is None or caching.hit or not caching.ttl_s else _Kept(self, turn, caching)

    def keep(self, turn: Turn, caching: CacheUse, deltas: list[bytes]) -> None:
        now, usage, timeline = SYSTEM_CLOCK.time(), turn.usage, turn.record.timeline
        seconds = SYSTEM_CLOCK.now() - timeline.received_s
        tokens = usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens
        answer = Answer(joined_deltas(deltas), now, seconds, *tokens)
        self.store.put(turn.record.principal, caching.key, answer, caching.ttl_s)

    @property
    def max_bytes(self) -> int:
        """Bytes of the largest answer that is kept."""
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


def options_of(turn: Turn, identity: AnswerIdentity) -> CacheOptions:
    """The options in a request's headers and body together."""
    headers, body = turn.record.cache, identity.request.cache
    if body is None:
        return headers
    ages = [age for age in (headers.s_maxage, body.s_maxage) if age is not None]
    own = {"no_cache": headers.no_cache or body.no_cache, "no_store": headers.no_store or body.no_store}
    return body.model_copy(update={**own, "s_maxage": min(ages, default=None)})


def is_sampled(identity: AnswerIdentity) -> bool:
    """Whether its answer is drawn at random, and would be another one when it is asked for again."""
    if identity.request.seed is not None:
        return False
    if identity.samplings:
        return not all(map(_is_greedy, identity.samplings))
    return identity.request.temperature != 0


def answer_key(turn: Turn, prompt: GeneratedPrompt, options: CacheOptions, more: str = "") -> bytes:
    """The digest of everything that changes the answer: the model with its version and adapter, the prompt's tokens (or
    the messages, where another server makes them), and every field of the request that is not known to have no part in
    it. The owner is not in it: each has a store of its own."""
    identity, model = prompt.identity, prompt.model
    assert isinstance(model, ReadyModel)
    is_chat = isinstance(identity.request, ChatCompletionRequest)
    leave_out = _NO_PART | ({"messages"} if is_chat and prompt.token_ids else set())
    fields = identity.request.model_dump(exclude=leave_out, exclude_none=True)
    seed = identity.request.seed
    elsewhere = None if identity.samplings else seed
    parts = (turn.model, turn.adapter, model.fingerprint, is_chat, options.namespace, elsewhere, more, fields)
    digest = hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16)
    for sampling in identity.samplings:
        has_seed = seed is not None and not _is_greedy(sampling)
        digest.update(msgspec.msgpack.encode(sampling if has_seed else msgspec.structs.replace(sampling, seed=0)))
    digest.update(array("I", prompt.token_ids).tobytes())
    return digest.digest()


def _is_greedy(sampling: SamplingParams) -> bool:
    return sampling.temperature == 0 or sampling.top_k == 1
