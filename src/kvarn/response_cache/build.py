"""Makes the stores of answers, and of their questions, of a gateway process."""

from __future__ import annotations

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.response_cache import ResponseCacheConfig
from kvarn.observe.response_cache import ResponseCacheMetrics
from kvarn.response_cache.memory import MemoryAnswers
from kvarn.response_cache.questions import Questions
from kvarn.response_cache.store import AnswerStore


def make_questions(config: ResponseCacheConfig) -> Questions:
    return Questions(config.error_bound, config.project_questions, config.memory_mib << 20)


def make_answer_store(config: ResponseCacheConfig, metrics: ResponseCacheMetrics) -> AnswerStore:
    """The store that the configuration names. Raises `ConfigError`: the URL of Redis cannot be used."""
    if config.redis_url is not None:
        from kvarn.response_cache.redis import RedisAnswers  # an extra

        return RedisAnswers(config.redis_url, config.timeout_s, metrics.faults.inc)
    return MemoryAnswers(config.project_mib << 20, config.memory_mib << 20, SYSTEM_CLOCK.time, metrics.bytes.set)
