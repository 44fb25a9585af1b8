"""A designed set of steps, timed on the model itself, and the step times fitted to them.

Each step is a plan made here, so that every size is as it is meant: batches by contexts, prompts behind cached tokens,
both together, and rows that verify proposals. Only the executor's work is timed.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from kvarn.costs.step_times import StepShape, StepTimes
from kvarn.engine.plan import BlockUpdate, Executor, NewSequence, Row, StepPlan
from kvarn.engine.step_time import StepTimeModel
from kvarn.shapes import BLOCK_SIZE
from kvarn.simulator.calibration import RegionFit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.modelled import shape_of

_FILL_TOKENS = 256
"""Prompt tokens of a step that fills the cache before anything is timed."""
_SLOWEST = 2.0
"""Times what is expected that a step counts as at most: one that the machine has held up is no example."""


class StepSample(msgspec.Struct, frozen=True):
    """A step that was timed."""

    shape: StepShape
    seconds: float


@dataclass(frozen=True, slots=True)
class StepCase:
    """A kind of step: rows that decode, each with so many proposals, and a prompt's chunk behind cached tokens."""

    rows: int = 0
    context: int = 0
    proposals: int = 0
    prompt: int = 0
    cached: int = 0

    @property
    def region(self) -> str:
        """The kind of step, in a few words."""
        if self.proposals:
            return "verification"
        if self.rows and self.prompt:
            return "mixed"
        return "decode" if self.rows else "prompt"


def designed_cases(max_seqs: int, max_context: int, max_tokens: int = 8192) -> list[StepCase]:
    """Steps whose times tell the parts of a step apart, of at most `max_tokens` cached tokens each."""
    batches = [batch for batch in (1, 2, 4, 8, 16, 32, 64) if batch <= max_seqs]
    contexts = [context for context in (64, 256, 1024, 4096) if context < max_context]
    cases = [
        StepCase(rows=rows, context=context) for rows in batches for context in contexts if rows * context <= max_tokens
    ]
    for cached in (0, *contexts[1:]):
        cases += [
            StepCase(prompt=tokens, cached=cached)
            for tokens in (8, 32, 128, 512, 1024)
            if cached + tokens <= min(max_context, max_tokens)
        ]
    context = contexts[min(1, len(contexts) - 1)]
    small = [rows for rows in batches if rows < max_seqs and rows * context <= max_tokens]
    cases += [StepCase(rows=rows, context=context, prompt=tokens) for rows in small[::2] for tokens in (32, 256)]
    cases += [StepCase(rows=rows, context=context, proposals=count) for rows in small[:4] for count in (2, 6)]
    return [case for case in cases if case.context + case.proposals < max_context and case.prompt < max_context]


def time_steps(
    executor: Executor, cases: Sequence[StepCase], vocab_size: int, rounds: int, seed: int = 0
) -> Iterator[tuple[StepCase, StepSample]]:
    """Each case once in each round, in an order that is drawn. The executor holds a slot for each row, one for a prompt
    and blocks for the longest of each (`blocks_for`)."""
    steps = _Steps(executor, cases, vocab_size)
    chance = random.Random(seed)
    for number in range(rounds + 1):
        for case in chance.sample(list(cases), len(cases)):
            sample = steps.run(case)
            if number:  # the first round warms caches up
                yield case, sample


def blocks_for(cases: Sequence[StepCase]) -> int:
    """Blocks of the KV cache that the cases need."""
    return sum(-(-length // BLOCK_SIZE) for length in _slot_lengths(cases))


def fit(samples: Sequence[StepSample]) -> StepTimes:
    """Step times whose errors are smallest in proportion to the steps, no part of them below 0."""
    known = [(sample.shape, sample.seconds) for sample in samples]
    first = StepTimeModel(expected=known).times
    held = [(shape, min(seconds, _SLOWEST * max(first.seconds(shape), 1e-9))) for shape, seconds in known]
    return StepTimeModel(expected=held).times


def errors_by_region(times: StepTimes, samples: Sequence[tuple[str, StepSample]]) -> list[RegionFit]:
    """Errors of step times, for each region that samples are of."""
    found: dict[str, list[float]] = {}
    for region, sample in samples:
        found.setdefault(region, []).append(times.seconds(sample.shape) / sample.seconds - 1)
    return [
        RegionFit(region, len(errors), statistics.median(errors), _p95([abs(error) for error in errors]))
        for region, errors in sorted(found.items())
    ]


def region_of(shape: StepShape) -> str:
    """The region of a step that was seen under load."""
    case = StepCase(rows=shape.decode_rows, proposals=shape.proposals, prompt=shape.prefill_tokens)
    return case.region


class _Steps:
    """Sequences in an executor's slots, whose tokens and blocks are there, so that any step on top of them can be run.

    Slots 0, 1, ... are rows that decode; the last one is the prompt's.
    """

    def __init__(self, executor: Executor, cases: Sequence[StepCase], vocab_size: int) -> None:
        self._executor = executor
        self._vocab_size = vocab_size
        lengths = _slot_lengths(cases)
        self._prompt_slot = len(lengths) - 1
        first = 0
        for slot, length in enumerate(lengths):
            count = -(-length // BLOCK_SIZE)
            blocks = [BlockUpdate(place, first + place) for place in range(count)]
            first += count
            sampling = SamplingParams(seed=1, temperature=0.0, max_tokens=1)
            new = NewSequence(slot, sampling, 1, self._tokens(0, length), [])
            for start in range(0, length, _FILL_TOKENS):
                tokens = self._tokens(start, min(_FILL_TOKENS, length - start))
                row = Row(slot, start, tokens, [] if start else blocks, sample=False)
                self._run([row], [] if start else [new])

    def run(self, case: StepCase) -> StepSample:
        rows = [
            Row(
                slot,
                case.context - 1,
                self._tokens(case.context - 1, 1 + case.proposals),
                [],
                sample=True,
                num_proposals=case.proposals,
            )
            for slot in range(case.rows)
        ]
        if case.prompt:
            rows.append(Row(self._prompt_slot, case.cached, self._tokens(case.cached, case.prompt), [], sample=True))
        return self._run(rows)

    def _run(self, rows: list[Row], new: Sequence[NewSequence] = ()) -> StepSample:
        plan = StepPlan(0, [], list(new), [], rows)
        self._executor.submit(plan)
        return StepSample(shape_of(plan), self._executor.collect().elapsed_s)

    def _tokens(self, start: int, count: int) -> list[int]:
        return [(31 * place + 7) % self._vocab_size for place in range(start, start + count)]


def _slot_lengths(cases: Sequence[StepCase]) -> list[int]:
    """Tokens of the sequence in each slot, the prompt's last."""
    rows = max((case.rows for case in cases), default=0)
    lengths = [max(case.context + case.proposals for case in cases if case.rows > slot) for slot in range(rows)]
    return [*lengths, max((case.cached + case.prompt for case in cases), default=0) or 1]


def _p95(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
