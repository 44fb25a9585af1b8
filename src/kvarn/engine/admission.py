"""Requests that the engine refuses at once, with a typed reason."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

from kvarn.config.engine import EngineConfig
from kvarn.engine.errors import AdmissionError
from kvarn.engine.memory.kv_cache_manager import blocks_for
from kvarn.engine.request import Request
from kvarn.shapes import BLOCK_SIZE
from kvarn.wire.block_names import NamedPrompt
from kvarn.wire.messages import RefusalReason, Submit

MAX_TOKEN_ID = 2**31  # token ids are below this in every vocabulary; the replica's server checks the model's own


class AdmissionControl:
    """Checks requests against what the engine can hold, and bounds those that wait for their first step."""

    def __init__(self, config: EngineConfig, num_blocks: int, max_context_length: int) -> None:
        self._config = config
        self._num_blocks = num_blocks
        self._max_context_length = max_context_length
        self._fresh: OrderedDict[str, Request] = OrderedDict()
        self._fresh_tokens = 0
        self.draining = False

    @property
    def waiting_tokens(self) -> int:
        return self._fresh_tokens

    def check(self, message: Submit, adapter_blocks: int, retry_after_s: Callable[[], float]) -> None:
        """Raises `AdmissionError` if the request, whose adapter takes so many blocks, cannot be taken."""
        if self.draining:
            raise AdmissionError(RefusalReason.DRAINING, "the engine is shutting down: send the request to another")
        self._check_values(message)
        self._check_size(message, adapter_blocks)
        if not message.goes_on:
            self._check_queue(message, retry_after_s)

    def enter(self, request: Request) -> None:
        self._fresh[request.request_id] = request
        self._fresh_tokens += len(request.prompt)

    def leave(self, request: Request) -> None:
        if self._fresh.pop(request.request_id, None) is not None:
            self._fresh_tokens -= len(request.prompt)

    def overdue(self, now: float) -> list[Request]:
        late: list[Request] = []
        if self._config.max_wait_s is None:
            return late
        for request in self._fresh.values():
            if now - request.arrival_s <= self._config.max_wait_s:
                break
            if not request.goes_on:
                late.append(request)
        return late

    def _check_values(self, message: Submit) -> None:
        sampling, prompt = message.sampling, message.prompt_token_ids
        problems = (
            (not prompt, "the prompt is empty: send at least one token"),
            (not _has_valid_tokens(prompt), "a token id is out of range"),
            (not _has_names(message), "a prompt without tokens needs one answer, and the names of all its blocks"),
            (sampling.n < 1, "`n` must be at least 1"),
            (sampling.max_tokens < 0, "`max_tokens` must not be negative"),
            (not _may_go_on(message), "`resume_token_ids` must have an entry for each choice, one of them not ended"),
            (not 0 < message.weight < math.inf, "`weight` must be a finite number greater than 0"),
        )
        for wrong, text in problems:
            if wrong:
                raise AdmissionError(RefusalReason.INVALID, text)

    def _check_size(self, message: Submit, adapter_blocks: int) -> None:
        prompt, output = len(message.prompt_token_ids), message.sampling.max_tokens
        if prompt + min(output, 1) > self._max_context_length:
            raise AdmissionError(
                RefusalReason.PROMPT_TOO_LONG,
                f"This model's maximum context length is {self._max_context_length} tokens. However, the prompt has "
                f"{prompt} tokens, and the answer needs one: shorten the prompt.",
            )
        longest = min(prompt + output, self._max_context_length)
        needed = blocks_for(max(prompt, longest - 1)) + adapter_blocks
        if needed > self._num_blocks:
            raise AdmissionError(
                RefusalReason.NEVER_FITS,
                f"{'prompt, adapter' if adapter_blocks else 'prompt'} and answer need {needed} KV blocks, "
                f"the engine has {self._num_blocks}: lower `max_tokens` or shorten the prompt",
            )

    def _check_queue(self, message: Submit, retry_after_s: Callable[[], float]) -> None:
        prompt = len(message.prompt_token_ids)
        if len(self._fresh) >= self._config.max_waiting_requests:
            text = f"{len(self._fresh)} requests wait already: try again later"
        elif self._fresh_tokens + prompt > self._config.max_waiting_tokens:
            text = f"{self._fresh_tokens} prompt tokens wait already, {prompt} more are too many: try again later"
        else:
            return
        raise AdmissionError(RefusalReason.QUEUE_FULL, text, retry_after_s())


def _has_valid_tokens(prompt: list[int]) -> bool:
    if not prompt or isinstance(prompt, NamedPrompt):
        return True
    return min(prompt) >= 0 and max(prompt) < MAX_TOKEN_ID


def _has_names(message: Submit) -> bool:
    prompt, sampling = message.prompt_token_ids, message.sampling
    if not isinstance(prompt, NamedPrompt):
        return True
    computed = len(prompt) + max(0, sampling.max_tokens - 1)
    return sampling.n == 1 and len(prompt.names) >= computed // BLOCK_SIZE


def _may_go_on(message: Submit) -> bool:
    if not message.resume_token_ids:
        return True
    sampling = message.sampling
    shorter = all(tokens is None or len(tokens) < sampling.max_tokens for tokens in message.resume_token_ids)
    return len(message.resume_token_ids) == sampling.n and bool(message.choices) and shorter
