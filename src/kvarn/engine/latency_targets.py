"""Requests that can still keep their latency targets, and the number that may run at once for that.

Past an engine's capacity a queue in order of arrival makes every request late: each is begun when its target is missed
already. So `WaitingQueue` lets those go first that would have their first token in time if they started now
(`misses_target`), and none starts that would make running ones miss their time per token (`has_room`). Both are
predicted by the engine's step-time model; until that knows enough, every request starts at once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from kvarn.config.engine import EngineConfig
from kvarn.costs.prefill_speed import PrefillSpeed
from kvarn.engine.request import Request, Sequence
from kvarn.engine.step_time import StepTimeModel

TTFT_MARGIN = 0.6
"""Part of a target that a prediction may reach. Past capacity all that are served reach it, and what follows (the step
under way, the gateway, the network) comes on top. One that is taken for late too early loses its turn only to others
that can be in time."""
TPOT_MARGIN = 0.9
"""The same of the time for each token: single answers stray from the mean."""
OUT_OF_REACH = 2.5
"""Requests that miss a target on an idle engine get this many times what they take alone: a target out of reach
holds nothing back."""
CREDIT_REQUESTS = 4
"""A tenant that has only late requests lets others pass by at most the cost of so many usual ones."""
MAX_DELAY = 3.0
"""Steps are not expected to follow each other more slowly than so many times what they take."""
PACE_FADE = 0.05
"""Weight of the latest step in what is between steps: about the last twenty count."""
FADE = 0.02
"""Weight of the latest request in the averages: about the last hundred count."""


class LatencyTargets:
    """Predictions for requests that wait. `running`: the scheduler's own, current collection."""

    def __init__(self, config: EngineConfig, step_time: StepTimeModel, running: Collection[Sequence]) -> None:
        self._config = config
        self._times = step_time
        self._running = running
        self._ended = 0
        self._prompt = self._output = self._computed = 0.0
        """The average request: tokens of its prompt and its answer, and the part of the prompt that was computed."""
        self._planned_at: float | None = None
        self._between_s = self._taken_s = 0.0
        """Faded sums: from one plan to the next, and what the steps took by themselves."""
        self._pace = 1.0
        """The one over the other: the loop around the steps takes time, too, much of it on a busy machine."""
        self._prefill = PrefillSpeed(0.0, 1.0)  # tokens of prompts computed a second beside the decodes
        self._before_s = 0.0  # seconds that the prompts which are being computed still take

    @property
    def usual_cost(self) -> float:
        """Cost of the average request: tokens of its computed prompt and of its answer, each kind by its weight."""
        return self._cost(self._computed * self._prompt, self._output)

    def cost(self, sequence: Sequence) -> float:
        """Expected cost of a sequence, in weighted tokens as `usual_cost`."""
        output = min(float(sequence.request.sampling.max_tokens), self._output) if self._ended else 0.0
        return self._cost(sequence.num_tokens, output)

    def planned(self, now: float, *, is_busy: bool) -> None:
        """A step is planned. `is_busy`: the engine has had nothing but steps to wait for since the one before."""
        if is_busy and self._planned_at is not None:
            self._between_s += PACE_FADE * (now - self._planned_at - self._between_s)
        self._planned_at = now
        if self._taken_s > 0:
            self._pace = min(max(1.0, self._between_s / self._taken_s), MAX_DELAY)

    def took(self, seconds: float, *, warming: bool) -> None:
        """A step took so long by itself. `warming`: it is no example, nor is the time until the next plan."""
        if warming:
            self._planned_at = None
            return
        self._taken_s += PACE_FADE * (seconds - self._taken_s)

    def advance(self, planned_s: list[float], elapsed_s: list[float]) -> None:
        """Steps that were planned at these times, one after the other, and took so long by themselves."""
        between_s, taken_s, planned_at = self._between_s, self._taken_s, self._planned_at
        for now, seconds in zip(planned_s[:-1], elapsed_s[:-1], strict=True):
            if planned_at is not None:
                between_s += PACE_FADE * (now - planned_at - between_s)
            planned_at = now
            taken_s += PACE_FADE * (seconds - taken_s)
        self._between_s, self._taken_s, self._planned_at = between_s, taken_s, planned_at
        self.planned(planned_s[-1], is_busy=True)
        self.took(elapsed_s[-1], warming=False)

    def learn(self, request: Request) -> None:
        self._ended += 1
        fade = max(FADE, 1 / self._ended)
        prompt, computed = len(request.prompt), len(request.prompt) - request.cached_tokens
        output = sum(sequence.num_outputs for sequence in request.sequences) / len(request.sequences)
        self._prompt += fade * (prompt - self._prompt)
        self._output += fade * (max(1.0, output) - self._output)
        self._computed += fade * (computed / prompt - self._computed)

    def look(self) -> None:
        """Take what runs now as what a sequence would start beside."""
        if not self._times.is_settled:
            return
        contexts = [each.num_tokens for each in self._running if each.num_tokens - each.num_computed_tokens <= 1]
        decode_s, token_s = self._step_s(len(contexts), sum(contexts)), self._prompt_s(1024) / 1024
        limit_s = self._limit_s(self._running, 1)
        self._prefill = PrefillSpeed.beside(decode_s, len(contexts), token_s, self._config, limit_s)
        partial = sum(each.num_tokens - each.num_computed_tokens for each in self._running) - len(contexts)
        self._before_s = self._compute_s(partial)

    def step_limit_s(self) -> float | None:
        """Seconds that a step may take so that the sequences that run, and are in time so far, keep their target for
        each token; None: there are none."""
        limit_s = self._limit_s(self._running, 1)
        return None if limit_s is None else limit_s / self._pace

    def misses_target(self, sequence: Sequence, now: float) -> bool:
        request = sequence.request
        assert request.first_token_by_s is not None, "only what has a target misses it"
        if request.first_token_by_s <= request.arrival_s:
            return True
        tokens = len(request.prompt) * (self._computed if self._ended else 1.0)
        allowed_s = TTFT_MARGIN * (request.first_token_by_s - request.arrival_s)
        if self._times.is_settled:
            alone_s = self._prompt_s(tokens) + self._step_s(0, 0) * math.ceil(tokens / self._config.token_budget)
            allowed_s = max(allowed_s, OUT_OF_REACH * alone_s)
            now += self._before_s + self._compute_s(tokens)
        return now > request.arrival_s + allowed_s

    def has_room(self, sequence: Sequence, instead_of: Sequence | None = None) -> bool:
        """Whether a sequence may start, perhaps instead of one that runs: no running one, in time so far, would miss
        its target for each token. Its own target refuses it nothing, and an answer that was begun anywhere goes
        on. Prompts do not count: they take what a step has left (`step_limit_s`)."""
        if _has_begun(sequence):
            return True
        running = [each for each in self._running if each is not instead_of]
        limit_s = self._limit_s(running, sequence.num_tokens)
        if limit_s is None or self._least_s(running, sequence) <= limit_s:
            return True
        # Where rows without a target to keep take too long by themselves, keeping one out does not help.
        kept = [each for each in running if each.request.tpot_target_s is not None and not each.request.is_late]
        is_kept = sequence.request.tpot_target_s is not None and not sequence.request.is_late
        return is_kept and self._least_s(running) >= limit_s and self._least_s(kept, sequence) <= limit_s

    def _least_s(self, running: Collection[Sequence], start: Sequence | None = None) -> float:
        """Least seconds of a step, with part of a prompt: of sequences that run, and of one that starts."""
        rows, context = len(running), sum(each.num_tokens for each in running)
        if start is not None:
            rows += len(start.request.sequences) + len(start.request.siblings)
            context += start.num_tokens
        return self._step_s(rows, context) + self._prompt_s(self._config.min_prefill_chunk)

    def _limit_s(self, sequences: Iterable[Sequence], context: int) -> float | None:
        requests = [each.request for each in sequences if not each.request.is_late]
        targets = [each.tpot_target_s for each in requests if each.tpot_target_s is not None]
        if not targets or not self._times.is_settled:
            return None
        return max(TPOT_MARGIN * min(targets), OUT_OF_REACH * self._step_s(1, context))

    def _compute_s(self, tokens: float) -> float:
        return self._prefill.seconds(tokens, self._prompt_s(tokens))

    def _step_s(self, rows: int, context: float) -> float:
        return self._pace * self._times.fitted.decode_s(rows, context)

    def _prompt_s(self, tokens: float) -> float:
        return self._pace * self._times.fitted.prompt_s(tokens)

    def _cost(self, prompt: float, output: float) -> float:
        return prompt * self._config.input_token_weight + output * self._config.output_token_weight


def _has_begun(sequence: Sequence) -> bool:
    """Whether it has run, or comes from another engine: then its target for the first token is no matter any more."""
    request = sequence.request
    moved = request.tpot_target_s is not None and request.first_token_by_s is None
    return moved or request.first_step_s is not None or sequence.num_outputs > 0
