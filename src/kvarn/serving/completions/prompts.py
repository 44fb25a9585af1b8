"""What chat and text completions do alike on the way from a request to the engine."""

from __future__ import annotations

from collections.abc import Sequence

from kvarn.config.schema import GatewayConfig
from kvarn.serving.choice import Choice
from kvarn.serving.models import ReadyModel
from kvarn.serving.pipeline import Work
from kvarn.text.detokenizer import IncrementalDetokenizer
from kvarn.text.sampling import stop_strings
from kvarn.text.stop_strings import StopMatcher, StopStrings
from kvarn.wire.messages import Submit
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.completions import CompletionRequest
from kvarn.wire.openai.errors import invalid_request
from kvarn.wire.sampling import SamplingParams


def check_token_ids(token_ids: list[int], model: ReadyModel, param: str) -> None:
    """Refuse token ids that the model has not.

    Raises:
        ApiError: 400 that names the field.
    """
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= model.card.vocab_size):
        raise invalid_request(f"{param!r} holds token ids outside 0 to {model.card.vocab_size - 1}.", param)


def make_choices(
    request: ChatCompletionRequest | CompletionRequest,
    sampling: SamplingParams,
    model: ReadyModel,
    limits: GatewayConfig,
    first_index: int = 0,
    continued: Sequence[int] = (),
    shown: frozenset[int] = frozenset(),
) -> list[Choice]:
    """The `n` choices of one prompt; the first has number `first_index` in the answer.

    `continued` are the prompt's tokens where the answer's text goes on from the prompt's; `shown` are special tokens
    that are part of the text all the same.
    """
    strings = stop_strings(request, limits)
    stops = StopStrings(strings) if strings else None
    named = frozenset(request.stop_token_ids or ())
    return [
        Choice(
            first_index + index,
            IncrementalDetokenizer(
                model.tokenizer, skip_special_tokens=request.skip_special_tokens, after=continued, shown=shown
            ),
            None if stops is None else StopMatcher(stops, include_stop=request.include_stop_str_in_output),
            sampling.min_tokens,
            named,
            prompt_only=isinstance(request, CompletionRequest) and request.max_tokens == 0,
        )
        for index in range(sampling.n)
    ]


def make_submit(
    request_id: str, prompt: list[int], sampling: SamplingParams, work: Work, cache_salt: str | None
) -> Submit:
    """What is sent to the engine. The tenant and its secret salt come from the server, never from the client: a
    tenant's cached prompts cannot be found, or their presence timed, by another."""
    principal = work.principal
    return Submit(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=sampling,
        tenant=principal.organization_id,
        weight=principal.weight,
        priority=work.priority,
        cache_salt=f"{principal.cache_salt}/{cache_salt or ''}",
        adapter=work.adapter,
    )
