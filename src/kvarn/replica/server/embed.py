"""Service of an encoder: requests share passes in turns, so that a long one does not delay the short ones."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.engine import EngineConfig
from kvarn.engine.memory.block_inventory import BlockPlace
from kvarn.wire.messages import (
    Embed,
    Embedded,
    EngineStats,
    Join,
    LoadAdapter,
    ModelCard,
    RefusalReason,
    Refused,
    StepOutput,
    Submit,
    UnloadAdapter,
)
from kvarn.wire.questions import Question
from kvarn.wire.sessions import SessionNews

if TYPE_CHECKING:  # it brings torch
    from kvarn.worker.encoder_runner import EncoderRunner


@dataclass(slots=True)
class _Job:
    waiting: deque[list[int]]
    vectors: list[bytes] = field(default_factory=list)


class EmbedService:
    """Embeds token-id inputs; each step is one pass of at most `token_budget` tokens (one input may exceed it)."""

    def __init__(
        self,
        runner: EncoderRunner,
        config: EngineConfig,
        card: ModelCard,
        clock: Callable[[], float] = SYSTEM_CLOCK.now,
    ) -> None:
        self.card = card
        self.sleep = None
        """Encoders cannot sleep: see `GenerateService`."""
        self.block_places: list[BlockPlace] = []  # empty: encoders have no cached blocks
        self._runner = runner
        self._config = config
        self._clock = clock
        self._jobs: dict[str, _Job] = {}  # jobs by request id; the next one first
        self._waiting_tokens = 0
        self._draining = False
        self._refused: Counter[str] = Counter()
        self._stats = EngineStats()

    def change_adapters(self, message: LoadAdapter | UnloadAdapter) -> Refused:
        why = "this model embeds: it has no adapters"
        return Refused(request_id=message.request_id, reason=RefusalReason.INVALID, message=why)

    def answer(self, question: Question) -> bytes:
        """Nothing: an encoder keeps no records of its passes, and has no KV blocks."""
        return b""

    def join(self, message: Join) -> None:
        """Answer a gateway process that joins: with nothing."""

    def accept(self, request: Submit | Embed) -> Refused | None:
        problem = self._find_problem(request)
        if problem is not None:
            reason, message = problem
            self._refused[reason] += 1
            return Refused(request_id=request.request_id, reason=reason, message=message)
        assert isinstance(request, Embed)
        self._jobs[request.request_id] = _Job(deque(request.inputs))
        self._waiting_tokens += sum(map(len, request.inputs))
        return None

    def take_session_news(self, news: SessionNews) -> None:
        """Do nothing: an encoder has no sessions."""

    def forget_tenant(self, tenant: str) -> None:
        """Do nothing: nothing of a tenant is kept."""

    def abort(self, request_id: str) -> None:
        job = self._jobs.pop(request_id, None)
        if job is not None:
            self._waiting_tokens -= sum(map(len, job.waiting))
            self._stats = replace(self._stats, aborts_total=self._stats.aborts_total + 1)

    def start_draining(self) -> None:
        self._draining = True

    def has_work(self) -> bool:
        return bool(self._jobs)

    def step(self) -> Sequence[Embedded | StepOutput]:
        began = self._clock()
        jobs, inputs = self._next_batch()
        for job, vector in zip(jobs, self._runner.embed(inputs), strict=True):
            job.vectors.append(vector)
        done = [request_id for request_id, job in self._jobs.items() if not job.waiting]
        answers = [Embedded(request_id=each, vectors=self._jobs.pop(each).vectors) for each in done]
        stats, tokens = self._stats, sum(map(len, inputs))
        self._waiting_tokens -= tokens
        self._stats = replace(
            stats,
            step=stats.step + 1,
            batch_tokens=tokens,
            batch_seqs=len(inputs),
            step_s=self._clock() - began,
            prompt_tokens_total=stats.prompt_tokens_total + tokens,
            finished_total=stats.finished_total + len(done),
        )
        return [*answers, StepOutput(deltas=[], stats=self.stats())]

    def stats(self) -> EngineStats:
        return replace(self._stats, waiting=len(self._jobs), refused_total=dict(self._refused))

    def shutdown(self) -> None:
        self._runner.shutdown()

    def _next_batch(self) -> tuple[list[_Job], list[list[int]]]:
        """Inputs of one pass and their jobs: one input of each request in turn, up to the budget, and at least one.
        Requests that got some come last next time."""
        jobs: list[_Job] = []
        inputs: list[list[int]] = []
        budget = self._config.token_budget
        turn = list(self._jobs)
        while turn and (not inputs or budget > 0):
            later = []
            for request_id in turn:
                job = self._jobs[request_id]
                if inputs and len(job.waiting[0]) > budget:
                    continue
                jobs.append(job)
                inputs.append(job.waiting.popleft())
                budget -= len(inputs[-1])
                self._jobs[request_id] = self._jobs.pop(request_id)
                if job.waiting:
                    later.append(request_id)
            turn = later
        return jobs, inputs

    def _find_problem(self, request: Submit | Embed) -> tuple[RefusalReason, str] | None:
        if isinstance(request, Submit):
            return RefusalReason.INVALID, "this model makes embeddings: it does not generate text"
        if self._draining:
            return RefusalReason.DRAINING, "the engine is shutting down: send the request to another"
        if request.request_id in self._jobs:
            return RefusalReason.DUPLICATE_ID, f"a request {request.request_id!r} is running: choose another id"
        if not request.inputs or not all(request.inputs):
            return RefusalReason.INVALID, "there is no input, or an empty one: send at least one token"
        if not all(map(self.card.has_tokens, request.inputs)):
            return RefusalReason.INVALID, f"token ids must be in 0 to {self.card.vocab_size - 1}"
        longest, limit = max(map(len, request.inputs)), self.card.max_context_length
        if longest > limit:
            why = f"This model's maximum context length is {limit} tokens. However, an input has {longest} tokens."
            return RefusalReason.PROMPT_TOO_LONG, why
        if len(self._jobs) >= self._config.max_waiting_requests:
            return RefusalReason.QUEUE_FULL, f"{len(self._jobs)} requests wait already: try again later"
        if self._jobs and self._waiting_tokens + sum(map(len, request.inputs)) > self._config.max_waiting_tokens:
            return RefusalReason.QUEUE_FULL, f"{self._waiting_tokens} tokens wait already: try again later"
        return None
