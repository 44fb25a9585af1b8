"""From a client's request to `SamplingParams`: every limit checked, every refusal names its field."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from kvarn.text.errors import TokenizerError
from kvarn.text.sampling_defaults import SamplingDefaults
from kvarn.text.tokenizer import Tokenizer
from kvarn.wire.openai.errors import ContextLengthError, invalid_request
from kvarn.wire.sampling import SamplingParams

if TYPE_CHECKING:
    from kvarn.config.schema import GatewayConfig
    from kvarn.wire.openai.chat.request import ChatCompletionRequest
    from kvarn.wire.openai.common import SamplingFields
    from kvarn.wire.openai.completions import CompletionRequest

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default of `max_tokens` in `/v1/completions`."""

MAX_BAD_WORDS = 256
"""`bad_words` of one request at most: each costs a look at every step."""

_MOST_TOKENS = 2**31 - 1

MAX_PRIORITY = 1000
"""Priorities lie between minus and plus this."""


def check_sampling(
    request: SamplingFields,
    tokenizer: Tokenizer,
    limits: GatewayConfig,
    defaults: SamplingDefaults = SamplingDefaults(),  # noqa: B008 - it is frozen
) -> SamplingParams:
    """All that needs no prompt, done once however many prompts the request has, and before any is tokenized.

    What the client leaves out is taken from `defaults`, those of the model.

    `bad_words` are tokenized and lists of token ids may be long: run it off the event loop where the body is large.

    Returns:
        What `chat_sampling` and `completion_sampling` fit to a prompt; its `max_tokens` is not yet that of an answer.

    Raises:
        ApiError: 400 that names the field.
    """
    _whole("priority", request.priority, -MAX_PRIORITY, MAX_PRIORITY)
    stop_strings(request, limits)
    own_ends = () if request.ignore_eos else tokenizer.eos_token_ids
    asked_ends = _token_ids("stop_token_ids", request.stop_token_ids or [], tokenizer)
    return SamplingParams(
        seed=_seed(request.seed),
        temperature=_number("temperature", request.temperature, defaults.temperature, 0, 2),
        top_k=defaults.top_k if request.top_k is None else max(0, _whole("top_k", request.top_k, -1, 2**31 - 1)),
        top_p=_number("top_p", request.top_p, defaults.top_p, 0, 1, open_below=True),
        min_p=_number("min_p", request.min_p, defaults.min_p, 0, 1),
        repetition_penalty=_number(
            "repetition_penalty", request.repetition_penalty, defaults.repetition_penalty, 0, 100, open_below=True
        ),
        presence_penalty=_number("presence_penalty", request.presence_penalty, 0.0, -2, 2),
        frequency_penalty=_number("frequency_penalty", request.frequency_penalty, 0.0, -2, 2),
        logit_bias=_logit_bias(request.logit_bias or {}, tokenizer),
        allowed_token_ids=_allowed_token_ids(request.allowed_token_ids, tokenizer),
        bad_words=_bad_words(request.bad_words or [], tokenizer, limits),
        stop_token_ids=sorted({*own_ends, *asked_ends}),
        min_tokens=_min_tokens(request.min_tokens, _MOST_TOKENS),
        max_tokens=defaults.max_tokens or _MOST_TOKENS,
        prompt_logprobs=None
        if request.prompt_logprobs is None
        else _whole("prompt_logprobs", request.prompt_logprobs, 0, limits.max_logprobs),
        n=_whole("n", 1 if request.n is None else request.n, 1, limits.max_n),
    )


def chat_sampling(
    request: ChatCompletionRequest,
    checked: SamplingParams,
    limits: GatewayConfig,
    *,
    prompt_tokens: int,
    context_length: int,
    draw_seed: Callable[[], int] | None = None,
) -> SamplingParams:
    """Sampling of a chat request whose prompt has `prompt_tokens`, on a model that holds `context_length` tokens.

    `checked` is what `check_sampling` made of it. Without `max_tokens` the answer may have as many tokens as the
    model's defaults say, else fill the context; without `seed` it takes one from `draw_seed`.

    Raises:
        ApiError: 400 that names the field.
    """
    name = "max_completion_tokens" if request.max_completion_tokens is not None else "max_tokens"
    asked = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    room = _room(prompt_tokens, context_length, "messages")
    by_default = min(room, max(checked.max_tokens, checked.min_tokens))
    max_tokens = by_default if asked is None else _max_tokens(asked, name, prompt_tokens, context_length, lowest=1)
    top = _whole("top_logprobs", request.top_logprobs or 0, 0, limits.max_logprobs)
    return _fit(request, checked, max_tokens, top if request.logprobs else None, draw_seed)


def completion_sampling(
    request: CompletionRequest,
    checked: SamplingParams,
    limits: GatewayConfig,
    *,
    prompt_tokens: int,
    context_length: int,
    draw_seed: Callable[[], int] | None = None,
) -> SamplingParams:
    """Sampling of one prompt of a completion request; see `chat_sampling`.

    An engine always draws a token: for `max_tokens` 0 (allowed with `echo`) one is drawn, to be dropped by the caller.
    With `echo`, `logprobs` asks for those of the prompt as well.
    """
    room = _room(prompt_tokens, context_length, "prompt")
    asked = request.max_tokens
    max_tokens = (
        min(DEFAULT_COMPLETION_TOKENS, room)
        if asked is None
        else _max_tokens(asked, "max_tokens", prompt_tokens, context_length, lowest=0)
    )
    logprobs = None if request.logprobs is None else _whole("logprobs", request.logprobs, 0, limits.max_logprobs)
    params = _fit(request, checked, max(max_tokens, 1), logprobs, draw_seed)
    if request.echo and logprobs is not None:
        return msgspec.structs.replace(params, prompt_logprobs=max(logprobs, params.prompt_logprobs or 0))
    return params


def stop_strings(request: SamplingFields, limits: GatewayConfig) -> list[str]:
    """The stop strings of a request.

    Raises:
        ApiError: 400: too many, too long, or an empty one.
    """
    stops = [request.stop] if isinstance(request.stop, str) else list(request.stop or [])
    if len(stops) > limits.max_stop_strings:
        raise invalid_request(
            f"'stop' holds {len(stops)} strings: at most {limits.max_stop_strings} are allowed.", "stop"
        )
    for stop in stops:
        if not stop:
            raise invalid_request("'stop' holds an empty string.", "stop")
        if len(stop) > limits.max_stop_string_chars:
            raise invalid_request(
                f"'stop' holds a string of {len(stop)} characters: at most {limits.max_stop_string_chars} are allowed.",
                "stop",
            )
    return stops


def _fit(
    request: SamplingFields,
    checked: SamplingParams,
    max_tokens: int,
    logprobs: int | None,
    draw_seed: Callable[[], int] | None,
) -> SamplingParams:
    """What was checked, for one prompt. Where the client gave no seed, each prompt draws its own: with `draw_seed`, or
    one that nobody can foresee."""
    if request.seed is None:
        checked = msgspec.structs.replace(checked, seed=draw_seed() if draw_seed is not None else _seed(None))
    return msgspec.structs.replace(
        checked,
        min_tokens=_min_tokens(checked.min_tokens, max_tokens),
        max_tokens=max_tokens,
        logprobs=logprobs,
    )


def _min_tokens(asked: int, most: int) -> int:
    return _whole("min_tokens", asked, 0, most, why=" ('max_tokens' or the room in the context)")


def _room(prompt_tokens: int, context_length: int, param: str) -> int:
    """Tokens that the context has left for the answer; at least one."""
    if prompt_tokens == 0:
        raise invalid_request("The prompt has no tokens: write something.", param)
    if prompt_tokens >= context_length:
        raise ContextLengthError(context_length, prompt_tokens, 1, param)
    return context_length - prompt_tokens


def _max_tokens(asked: int, name: str, prompt_tokens: int, context_length: int, *, lowest: int) -> int:
    if asked < lowest:
        raise invalid_request(f"{name!r} must be at least {lowest}, not {_shown(asked)}.", name)
    if asked > _MOST_TOKENS:
        raise invalid_request(f"{name!r} must be at most {_MOST_TOKENS}, not {_shown(asked)}.", name)
    if prompt_tokens + asked > context_length:
        raise ContextLengthError(context_length, prompt_tokens, asked, name)
    return asked


def _number(
    name: str, value: float | None, default: float, low: float, high: float, *, open_below: bool = False
) -> float:
    if value is None:
        return default
    if not low <= value <= high or (open_below and value == low):  # NaN fails here too
        bounds = f"above {low:g} and at most {high:g}" if open_below else f"from {low:g} to {high:g}"
        raise invalid_request(f"{name!r} must be {bounds}, not {_shown(value)}.", name)
    return float(value)


def _whole(name: str, value: int, low: int, high: int, *, why: str = "") -> int:
    if not low <= value <= high:
        raise invalid_request(f"{name!r} must be from {low} to {high}{why}, not {_shown(value)}.", name)
    return value


def _seed(seed: int | None) -> int:
    """The client's seed modulo 2**64, or one drawn now so that the request can be replayed."""
    if seed is None:
        return secrets.randbits(63)
    return _whole("seed", seed, -(2**63), 2**64 - 1) % 2**64


def _token_ids(name: str, ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """The ids, each once, in order."""
    unique = sorted(set(ids))
    wrong = next((token_id for token_id in unique[:1] + unique[-1:] if not tokenizer.has_token(token_id)), None)
    if wrong is not None:
        raise invalid_request(
            f"{name!r} holds {_shown(wrong)}: token ids of this model go from 0 to {tokenizer.vocab_size - 1}.", name
        )
    return unique


def _allowed_token_ids(ids: Sequence[int] | None, tokenizer: Tokenizer) -> list[int] | None:
    if ids is None:
        return None
    if not ids:
        raise invalid_request("'allowed_token_ids' is empty: nothing could be answered.", "allowed_token_ids")
    return _token_ids("allowed_token_ids", ids, tokenizer)


def _logit_bias(bias: dict[str, float], tokenizer: Tokenizer) -> dict[int, float]:
    checked: dict[int, float] = {}
    for key, value in bias.items():
        # Not int(): that takes "1_0", " 1" and other scripts' digits as well.
        if not (key.isascii() and key.isdigit() and len(key) < 12 and tokenizer.has_token(int(key))):
            raise invalid_request(
                f"'logit_bias' has the key {key[:20]!r}: keys are token ids from 0 to {tokenizer.vocab_size - 1}.",
                "logit_bias",
            )
        checked[int(key)] = _number("logit_bias", value, 0.0, -100, 100)
    return checked


def _bad_words(words: Sequence[str], tokenizer: Tokenizer, limits: GatewayConfig) -> list[list[int]]:
    """Each word as tokens, alone and after a space: most vocabularies write these differently."""
    if len(words) > MAX_BAD_WORDS:
        raise invalid_request(
            f"'bad_words' holds {len(words)} words: at most {MAX_BAD_WORDS} are allowed.", "bad_words"
        )
    for word in words:
        if not word.strip() or len(word) > limits.max_stop_string_chars:
            most = limits.max_stop_string_chars
            raise invalid_request(f"'bad_words' holds an empty word or one above {most} characters.", "bad_words")
    spellings = [form for word in words for form in (word, " " + word.lstrip())]
    try:
        sequences = tokenizer.encode_batch(spellings, add_special_tokens=False)
    except TokenizerError as error:
        raise invalid_request(str(error), "bad_words") from None
    return [list(sequence) for sequence in dict.fromkeys(map(tuple, sequences)) if sequence]


def _shown(value: float) -> str:
    """A number for a message: a client may send one with hundreds of digits."""
    return str(value) if abs(value) < 10**30 else "so large a number"
