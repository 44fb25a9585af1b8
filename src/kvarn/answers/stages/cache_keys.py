"""Keys of the response cache: everything that changes an answer, and what a request wants of the cache."""

from __future__ import annotations

import hashlib
from array import array
from typing import Any

import msgspec

from kvarn.answers.turn import AnswerIdentity, GeneratedPrompt, Turn
from kvarn.catalog.models import ReadyModel
from kvarn.wire.openai.cache import CacheOptions
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.sampling import SamplingParams

_NO_PART = {
    *("model", "stream", "stream_options", "seed", "user", "safety_identifier", "metadata", "store", "service_tier"),
    *("priority", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "agent_hint"),
    *("retention_directives", "cache"),
}
"""Fields of requests that have no part in the answer, or of which the key has something better."""
_MAX_QUESTION = 2000
"""Characters of a question that is compared with others."""


def options_of(turn: Turn, identity: AnswerIdentity) -> CacheOptions:
    headers, body = turn.record.cache, identity.request.cache
    if body is None:
        return headers
    ages = [age for age in (headers.s_maxage, body.s_maxage) if age is not None]
    own = {"no_cache": headers.no_cache or body.no_cache, "no_store": headers.no_store or body.no_store}
    return body.model_copy(update={**own, "s_maxage": min(ages, default=None)})


def is_sampled(turn: Turn, identity: AnswerIdentity) -> bool:
    """Whether its answer is drawn at random, and would be another one when it is asked for again."""
    if _seed_of(turn, identity) is not None:
        return False
    if identity.samplings:
        return not all(map(_is_greedy, identity.samplings))
    return identity.request.temperature != 0


def answer_key(turn: Turn, prompt: GeneratedPrompt, options: CacheOptions, more: str = "") -> bytes:
    """The digest of everything that changes the answer: the model with its version and adapter, the prompt's tokens (or
    the messages, where another server makes them), and every field of the request that is not known to have no part in
    it. The owner is not in it: each has a store of its own. `more`: what else counts."""
    identity = prompt.identity
    is_tokenized = isinstance(identity.request, ChatCompletionRequest) and bool(prompt.token_ids)
    digest = _digest(turn, prompt, options, [more], {"messages"} if is_tokenized else set())
    for sampling in identity.samplings:
        digest.update(msgspec.msgpack.encode(_with_seed(sampling, turn, identity)))
    digest.update(array("I", prompt.token_ids).tobytes())
    return digest.digest()


def question_of(identity: AnswerIdentity) -> str | None:
    """The last message of a chat, where others with the same contents may be compared with it; None: it is no text of
    the user, or tools have a part in what went before."""
    request = identity.request
    if not isinstance(request, ChatCompletionRequest):
        return None
    *before, last = request.plain_messages
    text = last["content"]
    if last["role"] != "user" or not isinstance(text, str) or not 0 < len(text) <= _MAX_QUESTION:
        return None
    return None if any(each["role"] == "tool" or each.get("tool_calls") for each in before) else text


def context_key(turn: Turn, prompt: GeneratedPrompt, options: CacheOptions, more: str) -> bytes:
    """The digest of all that `answer_key` has, but for the question: the messages before it, and the tokens before
    these, stand for the tokens."""
    identity = prompt.identity
    assert isinstance(identity.request, ChatCompletionRequest)
    *before, last = identity.request.plain_messages
    about = {name: value for name, value in last.items() if name != "content"}
    digest = _digest(turn, prompt, options, [more, list(identity.context), before, about], {"messages"})
    for sampling in identity.samplings:  # what the context has room for depends on the question
        fitted = msgspec.structs.replace(_with_seed(sampling, turn, identity), max_tokens=0)
        digest.update(msgspec.msgpack.encode(fitted))
    return digest.digest()


def _digest(
    turn: Turn, prompt: GeneratedPrompt, options: CacheOptions, more: list[Any], leave_out: set[str]
) -> hashlib.blake2b:
    identity, model = prompt.identity, prompt.model
    assert isinstance(model, ReadyModel)
    request = identity.request
    fields = request.model_dump(exclude=_NO_PART | leave_out, exclude_none=True)
    elsewhere = None if identity.samplings else _seed_of(turn, identity)
    config = model.served.config  # the answer is kept as it was read
    read_as = model.fingerprint, type(request).__name__, config.tool_format, config.reasoning_format
    parts = (turn.model, turn.adapter, *read_as, options.namespace, elsewhere, more, fields)
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16)


def _seed_of(turn: Turn, identity: AnswerIdentity) -> int | None:
    return None if turn.record.seed_drawn else identity.request.seed


def _with_seed(sampling: SamplingParams, turn: Turn, identity: AnswerIdentity) -> SamplingParams:
    """The parameters with the client's seed, where it changes anything; the server draws one for each request."""
    if _seed_of(turn, identity) is not None and not _is_greedy(sampling):
        return sampling
    return msgspec.structs.replace(sampling, seed=0)


def _is_greedy(sampling: SamplingParams) -> bool:
    return sampling.temperature == 0 or sampling.top_k == 1
