"""From a client's request to `SamplingParams`.

The wire's models check what holds for every model; here is what depends on the tokenizer, the configured limits, the
prompt and the context. Every error names its field.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from kvarn.text.errors import TokenizerError
from kvarn.text.tokenizer import Tokenizer
from kvarn.wire.openai.errors import ContextLengthError, invalid_request
from kvarn.wire.sampling import MAX_INT, SamplingParams

if TYPE_CHECKING:
    from kvarn.config.gateway import GatewayConfig
    from kvarn.wire.openai.chat.request import ChatCompletionRequest
    from kvarn.wire.openai.common import SamplingFields
    from kvarn.wire.openai.completions import CompletionRequest

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default of `max_tokens` in `/v1/completions`

MAX_BAD_WORDS = 256
"""`bad_words` in one request at most: each is compared at every step."""

IntT = TypeVar("IntT", int, int | None)

_DECIMALS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Values of parameters that a request leaves out: OpenAI's, unless the checkpoint's generation_config.json says
    otherwise."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    """Tokens of a chat answer; None: as many as fit in the context."""


def check_sampling(
    request: SamplingFields,
    tokenizer: Tokenizer,
    gateway_config: GatewayConfig,
    defaults: SamplingDefaults = SamplingDefaults(),
) -> SamplingParams:
    """Check all parameters that do not depend on a prompt: once a request, off the event loop where the body is
    large. Returns what `chat_sampling` and `completion_sampling` fit to a prompt; raises ApiError, 400 that names
    the field."""
    stop_strings(request, gateway_config)
    model_ends = () if request.ignore_eos else tokenizer.eos_token_ids
    request_ends = _token_ids("stop_token_ids", request.stop_token_ids or [], tokenizer)
    decimals: dict[str, Any] = {
        name: getattr(defaults, name, 0.0) if (value := getattr(request, name)) is None else float(value)
        for name in _DECIMALS
    }
    return SamplingParams(
        seed=(request.seed or 0) % 2**64,
        **decimals,
        top_k=defaults.top_k if request.top_k is None else max(0, request.top_k),
        logit_bias=_logit_bias(request.logit_bias or {}, tokenizer),
        allowed_token_ids=_allowed_token_ids(request.allowed_token_ids, tokenizer),
        bad_words=_bad_words(request.bad_words or [], tokenizer, gateway_config),
        stop_token_ids=sorted({*model_ends, *request_ends}),
        min_tokens=request.min_tokens,
        max_tokens=defaults.max_tokens or MAX_INT,
        prompt_logprobs=at_most("prompt_logprobs", request.prompt_logprobs, gateway_config.max_logprobs),
        n=at_most("n", request.n, gateway_config.max_n) or 1,
    )


def chat_sampling(
    request: ChatCompletionRequest,
    checked: SamplingParams,
    gateway_config: GatewayConfig,
    *,
    prompt_tokens: int,
    context_length: int,
    draw_seed: Callable[[], int] = lambda: secrets.randbits(63),
) -> SamplingParams:
    """Sampling of a chat request whose prompt has `prompt_tokens`, on a model that holds `context_length` tokens.

    Without `max_tokens` the answer may have as many as the model's defaults say, else fill the context; without `seed`
    it takes one from `draw_seed`. Raises ApiError: 400 that names the field.
    """
    name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    requested: int | None = getattr(request, name)
    default = max(checked.max_tokens, checked.min_tokens)
    max_tokens = _max_tokens(name, requested, default, prompt_tokens, context_length, "messages")
    top = at_most("top_logprobs", request.top_logprobs or 0, gateway_config.max_logprobs)
    return _fit(request, checked, max_tokens, top if request.logprobs else None, draw_seed)


def completion_sampling(
    request: CompletionRequest,
    checked: SamplingParams,
    gateway_config: GatewayConfig,
    *,
    prompt_tokens: int,
    context_length: int,
    draw_seed: Callable[[], int] = lambda: secrets.randbits(63),
) -> SamplingParams:
    """Sampling of one prompt of a completion request; see `chat_sampling`. With `echo`, `logprobs` requests those of
    the prompt as well, and `max_tokens` may be 0: an engine always draws a token, which the caller drops."""
    default, requested = DEFAULT_COMPLETION_TOKENS, request.max_tokens
    max_tokens = _max_tokens("max_tokens", requested, default, prompt_tokens, context_length, "prompt")
    logprobs = at_most("logprobs", request.logprobs, gateway_config.max_logprobs)
    params = _fit(request, checked, max(max_tokens, 1), logprobs, draw_seed)
    if request.echo and logprobs is not None:
        return msgspec.structs.replace(params, prompt_logprobs=max(logprobs, params.prompt_logprobs or 0))
    return params


def stop_strings(request: SamplingFields, gateway_config: GatewayConfig) -> list[str]:
    """The stop strings of a request. Raises ApiError: 400 for too many, too long, or an empty one."""
    stops = [request.stop] if isinstance(request.stop, str) else list(request.stop or [])
    longest = max(map(len, stops), default=0)
    problem = None
    if len(stops) > gateway_config.max_stop_strings:
        problem = f"{len(stops)} strings: at most {gateway_config.max_stop_strings} are allowed."
    elif not all(stops):
        problem = "an empty string."
    elif longest > gateway_config.max_stop_string_chars:
        problem = f"a string of {longest} characters: at most {gateway_config.max_stop_string_chars} are allowed."
    if problem is not None:
        raise invalid_request(f"'stop' holds {problem}", "stop")
    return stops


def _fit(
    request: SamplingFields,
    checked: SamplingParams,
    max_tokens: int,
    logprobs: int | None,
    draw_seed: Callable[[], int],
) -> SamplingParams:
    """The parameters for one prompt. Without a client's seed each prompt draws its own."""
    return msgspec.structs.replace(
        checked,
        seed=draw_seed() if request.seed is None else checked.seed,
        min_tokens=at_most("min_tokens", checked.min_tokens, max_tokens, "the tokens of the answer"),
        max_tokens=max_tokens,
        logprobs=logprobs,
    )


def _max_tokens(name: str, value: int | None, default: int, prompt_tokens: int, context_length: int, param: str) -> int:
    """The longest answer: what the client requests, if it fits in the context, else the default as far as it fits.
    `param` is the field that holds the prompt."""
    if prompt_tokens == 0:
        raise invalid_request("The prompt has no tokens: write something.", param)
    if prompt_tokens >= context_length:
        raise ContextLengthError(context_length, prompt_tokens, 1, param)
    if value is None:
        return min(default, context_length - prompt_tokens)
    if prompt_tokens + value > context_length:
        raise ContextLengthError(context_length, prompt_tokens, value, name)
    return value


def at_most(name: str, value: IntT, highest: int, why: str = "") -> IntT:
    if value is not None and value > highest:
        raise invalid_request(f"{name!r} may be at most {highest}{why and f' ({why})'}, not {value}.", name)
    return value


def _token_ids(name: str, ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    unique = sorted(set(ids))
    wrong = next((token_id for token_id in unique[:1] + unique[-1:] if not tokenizer.has_token(token_id)), None)
    if wrong is not None:
        raise invalid_request(
            f"{name!r} holds {str(wrong)[:20]}: token ids of this model go from 0 to {tokenizer.vocab_size - 1}.", name
        )
    return unique


def _allowed_token_ids(ids: Sequence[int] | None, tokenizer: Tokenizer) -> list[int] | None:
    if ids is not None and not ids:
        raise invalid_request("'allowed_token_ids' is empty: no token could be generated.", "allowed_token_ids")
    return None if ids is None else _token_ids("allowed_token_ids", ids, tokenizer)


def _logit_bias(bias: dict[str, float], tokenizer: Tokenizer) -> dict[int, float]:
    checked: dict[int, float] = {}
    for key, value in bias.items():
        # Not int(): that takes "1_0", " 1" and other scripts' digits as well.
        if not (key.isascii() and key.isdigit() and len(key) < 12 and tokenizer.has_token(int(key))):
            raise invalid_request(
                f"'logit_bias' has the key {key[:20]!r}: keys are token ids from 0 to {tokenizer.vocab_size - 1}.",
                "logit_bias",
            )
        checked[int(key)] = value
    return checked


def _bad_words(words: Sequence[str], tokenizer: Tokenizer, gateway_config: GatewayConfig) -> list[list[int]]:
    """Each word as tokens, alone and after a space: most vocabularies write these differently."""
    longest = gateway_config.max_stop_string_chars
    if len(words) > MAX_BAD_WORDS:
        raise invalid_request(
            f"'bad_words' holds {len(words)} words: at most {MAX_BAD_WORDS} are allowed.", "bad_words"
        )
    if any(not word.strip() or len(word) > longest for word in words):
        raise invalid_request(f"'bad_words' holds an empty word or one above {longest} characters.", "bad_words")
    spellings = [form for word in words for form in (word, " " + word.lstrip())]
    try:
        sequences = tokenizer.encode_batch(spellings, add_special_tokens=False)
    except TokenizerError as error:
        raise invalid_request(str(error), "bad_words") from None
    return [list(sequence) for sequence in dict.fromkeys(map(tuple, sequences)) if sequence]
