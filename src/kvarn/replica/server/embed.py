"""The service of an encoder: requests share passes, in turns, so that a long one does not hold up the short ones."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from kvarn.config.schema import EngineConfig
from kvarn.replica.server.service import Response
from kvarn.replica.server.validate import find_embed_problem
from kvarn.wire.messages import (
    Embed,
    Embedded,
    EngineStats,
    ModelCard,
    RefusalReason,
    Refused,
    StepOutput,
    Submit,
)


class EmbedsTokens(Protocol):
    """Turns token ids into vectors; see `kvarn.worker.EncoderRunner`."""

    def embed(self, inputs: list[list[int]]) -> list[bytes]:
        """One vector for each input, in the inputs' order."""
        ...


@dataclass(slots=True)
class _Job:
    request: Embed
    vectors: list[bytes] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return len(self.vectors) == len(self.request.inputs)

    @property
    def num_tokens_left(self) -> int:
        return sum(len(tokens) for tokens in self.request.inputs[len(self.vectors) :])


class EmbedService:
    """Embeds token-id inputs; each step is one pass of at most `token_budget` tokens (one input may exceed it)."""

    def __init__(
        self,
        runner: EmbedsTokens,
        config: EngineConfig,
        card: ModelCard,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._config = config
        self._card = card
        self._clock = clock
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._waiting_tokens = 0
        self._draining = False
        self._refused: Counter[str] = Counter()
        self._latest = EngineStats()
        self._steps = self._finished = self._aborts = self._tokens = 0

    @property
    def card(self) -> ModelCard:
        """What is served."""
        return self._card

    def accept(self, request: Submit | Embed) -> Refused | None:
        """Queue a request, or say why not."""
        problem = self._find_problem(request)
        if problem is not None:
            reason, message = problem
            self._refused[reason] += 1
            return Refused(request_id=request.request_id, reason=reason, message=message)
        assert isinstance(request, Embed)
        job = self._jobs[request.request_id] = _Job(request)
        self._waiting_tokens += job.num_tokens_left
        return None

    def abort(self, request_id: str) -> None:
        """Forget a request before the next pass."""
        job = self._jobs.pop(request_id, None)
        if job is not None:
            self._waiting_tokens -= job.num_tokens_left
            self._aborts += 1

    def start_draining(self) -> None:
        """Refuse every later request."""
        self._draining = True

    def has_work(self) -> bool:
        """Whether a request is here."""
        return bool(self._jobs)

    def step(self) -> Sequence[Response]:
        """One pass; the answers of the requests that it completes, and the gauges after it."""
        began = self._clock()
        batch = self._next_batch()
        inputs = [tokens for _, tokens in batch]
        for (job, tokens), vector in zip(batch, self._runner.embed(inputs), strict=True):
            job.vectors.append(vector)
            self._waiting_tokens -= len(tokens)
        done = [job for job in self._jobs.values() if job.done]
        for job in done:
            del self._jobs[job.request.request_id]
        self._count(inputs, len(done), self._clock() - began)
        answers = [Embedded(request_id=job.request.request_id, vectors=job.vectors) for job in done]
        return [*answers, StepOutput(deltas=[], stats=self.stats())]

    def stats(self) -> EngineStats:
        """Gauges and totals now."""
        return msgspec.structs.replace(
            self._latest,
            waiting=len(self._jobs),
            prompt_tokens_total=self._tokens,
            aborts_total=self._aborts,
            finished_total=self._finished,
            refused_total=dict(self._refused),
        )

    def shutdown(self) -> None:
        """Nothing is held that outlives the process."""

    def _next_batch(self) -> list[tuple[_Job, list[int]]]:
        """Inputs of one pass: an input of each request in turn, as many as the budget takes, always at least one.

        The requests that got the least this time come first next time.
        """
        batch: list[tuple[_Job, list[int]]] = []
        taken: Counter[str] = Counter()
        budget = self._config.token_budget
        turn = [job for job in self._jobs.values() if not job.done]
        while turn:
            later: list[_Job] = []
            for job in turn:
                key = job.request.request_id
                tokens = job.request.inputs[len(job.vectors) + taken[key]]
                if batch and len(tokens) > budget:
                    continue
                batch.append((job, tokens))
                budget -= len(tokens)
                taken[key] += 1
                if len(job.vectors) + taken[key] < len(job.request.inputs):
                    later.append(job)
            turn = later if budget > 0 else []
        for key in taken:
            self._jobs.move_to_end(key)
        return batch

    def _find_problem(self, request: Submit | Embed) -> tuple[RefusalReason, str] | None:
        if isinstance(request, Submit):
            return RefusalReason.INVALID, "this model makes embeddings: it does not generate text"
        if self._draining:
            return RefusalReason.DRAINING, "the engine is shutting down: send the request to another"
        if request.request_id in self._jobs:
            return RefusalReason.DUPLICATE_ID, f"a request {request.request_id!r} is running: choose another id"
        problem = find_embed_problem(request.inputs, self._card.vocab_size)
        if problem is not None or not request.inputs:
            return RefusalReason.INVALID, problem or "there is no input: send at least one"
        longest = max(len(tokens) for tokens in request.inputs)
        if longest > self._card.max_context_length:
            limit = self._card.max_context_length
            why = f"This model's maximum context length is {limit} tokens. However, an input has {longest} tokens."
            return RefusalReason.PROMPT_TOO_LONG, why
        return self._find_queue_problem(sum(len(tokens) for tokens in request.inputs))

    def _find_queue_problem(self, tokens: int) -> tuple[RefusalReason, str] | None:
        if len(self._jobs) >= self._config.max_waiting_requests:
            return RefusalReason.QUEUE_FULL, f"{len(self._jobs)} requests wait already: try again later"
        if self._jobs and self._waiting_tokens + tokens > self._config.max_waiting_tokens:
            return RefusalReason.QUEUE_FULL, f"{self._waiting_tokens} tokens wait already: try again later"
        return None

    def _count(self, inputs: list[list[int]], finished: int, elapsed_s: float) -> None:
        tokens = sum(len(entry) for entry in inputs)
        self._steps += 1
        self._finished += finished
        self._tokens += tokens
        self._latest = EngineStats(step=self._steps, batch_tokens=tokens, batch_seqs=len(inputs), step_s=elapsed_s)
