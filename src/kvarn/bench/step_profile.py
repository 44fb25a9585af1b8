"""Designed steps, timed on the model itself, and the step times fitted to them.

Each step is a plan made here, so that every size is as it is meant: batches by contexts, prompts behind cached tokens,
both together, and rows that verify proposals. Only the executor's work is timed.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvarn.costs.step_times import FEW_ROWS, FEW_TOKENS, StepShape, StepTimes
from kvarn.engine.plan import BlockUpdate, Executor, NewSequence, Row, StepPlan
from kvarn.shapes import BLOCK_SIZE
from kvarn.simulator.calibration import RegionFit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.modelled import shape_of

Floats = NDArray[np.float64]
_FILL_TOKENS = 256
"""Prompt tokens of a step that fills the cache before anything is timed."""
_FITS = 4
_SLOWEST = 3.0
"""Times what is expected that a step counts as at most: one that the machine has held up is no example."""


class StepSample(msgspec.Struct, frozen=True):
    shape: StepShape
    seconds: float


@dataclass(frozen=True, slots=True)
class StepCase:
    """A kind of step: rows that decode, each with so many proposals, and chunks of prompts, each of `prompt` tokens
    behind `cached` tokens."""

    rows: int = 0
    context: int = 0
    proposals: int = 0
    prompt: int = 0
    cached: int = 0
    prompts: int = 1

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
    batches = [batch for batch in (1, 2, 4, 8, 16, 32, 64, 128) if batch <= max_seqs]
    contexts = [context for context in (64, 256, 1024, 4096) if context < max_context]
    cases = [
        StepCase(rows=rows, context=context) for rows in batches for context in contexts if rows * context <= max_tokens
    ]
    for cached in (0, *contexts[1:]):
        cases += [
            StepCase(prompt=tokens, cached=cached)
            for tokens in (8, 32, 128, 256, 512, 1024, 2048)
            if cached + tokens <= min(max_context, max_tokens)
        ]
    cases += [
        StepCase(prompt=tokens, prompts=prompts)
        for prompts in (2, 4, 8, 16)
        for tokens in (16, 64, 256)
        if prompts <= max_seqs and prompts * tokens <= max_tokens
    ]
    context = contexts[min(1, len(contexts) - 1)]
    small = [rows for rows in batches if rows < max_seqs and rows * context <= max_tokens]
    cases += [StepCase(rows=rows, context=context, prompt=tokens) for rows in small[::2] for tokens in (32, 256)]
    cases += [StepCase(rows=rows, context=context, proposals=count) for rows in small[:4] for count in (2, 6)]
    return [case for case in cases if case.context + case.proposals < max_context and case.prompt < max_context]


def time_steps(
    executor: Executor, cases: Sequence[StepCase], vocab_size: int, rounds: int, seed: int = 0
) -> Iterator[tuple[StepCase, StepSample]]:
    """Each case once in each round, in an order that is drawn. The executor holds a slot for each row and each prompt
    (`slots_for`), and blocks for the longest of each (`blocks_for`)."""
    steps = _Steps(executor, cases, vocab_size)
    chance = random.Random(seed)
    for number in range(rounds + 1):
        for case in chance.sample(list(cases), len(cases)):
            sample = steps.run(case)
            if number:  # the first round warms caches up
                yield case, sample


def slots_for(cases: Sequence[StepCase]) -> int:
    return len(_slot_lengths(cases))


def blocks_for(cases: Sequence[StepCase]) -> int:
    return sum(-(-length // BLOCK_SIZE) for length in _slot_lengths(cases))


def fit(samples: Sequence[StepSample]) -> StepTimes:
    """Step times that are right on average, errors counted in proportion to the steps; no part of them is below 0.

    Errors are divided by what is expected, not by what was measured: else a slow step would count for less than a fast
    one, and the sum of many steps would come out too small.
    """
    features = np.array([_features(sample.shape) for sample in samples])
    seconds = np.array([sample.seconds for sample in samples])
    found = _least_squares(features, seconds, seconds)
    for _ in range(_FITS):
        expected = np.maximum(features @ found, 1e-9)
        found = _least_squares(features, np.minimum(seconds, _SLOWEST * expected), expected)
    return StepTimes(**dict(zip(_FEATURES, found.tolist(), strict=True)))


_FEATURES = (
    "fixed_s",
    "prefill_token_s",
    "prefill_pair_s",
    "decode_row_s",
    "decode_token_s",
    "further_row_s",
    "further_token_s",
)


def _features(shape: StepShape) -> tuple[float, ...]:
    rows = shape.decode_rows + shape.proposals
    further_rows, further_tokens = max(0, rows - FEW_ROWS), max(0, shape.prefill_tokens - FEW_TOKENS)
    return (1.0, shape.prefill_tokens, shape.prefill_pairs, rows, shape.decode_context, further_rows, further_tokens)


def _least_squares(features: Floats, seconds: Floats, scale: Floats) -> Floats:
    """Coefficients >= 0 with the least squares of errors over `scale`."""
    weighted, wanted = features / scale[:, None], seconds / scale
    sizes = np.maximum(np.abs(weighted).max(axis=0), 1e-30)
    found: Floats = nonnegative_least_squares(weighted / sizes, wanted) / sizes
    return found


def nonnegative_least_squares(features: Floats, wanted: Floats) -> Floats:
    """Coefficients >= 0 with the least squares of `features @ coefficients - wanted`, for a few features.

    The best one has some coefficients at 0 and is the plain least squares of the others: each choice is tried.
    """
    rotation, triangle = np.linalg.qr(features)
    rotated, count = rotation.T @ wanted, features.shape[1]
    best, least = np.zeros(count), float(rotated @ rotated)
    for chosen in itertools.product((False, True), repeat=count):
        free = np.flatnonzero(chosen)
        solved = np.linalg.lstsq(triangle[:, free], rotated, rcond=1e-9)[0]
        error = float(((triangle[:, free] @ solved - rotated) ** 2).sum())
        if (solved >= 0).all() and error < least:
            best, least = np.zeros(count), error
            best[free] = solved
    return best


def errors_by_region(times: StepTimes, samples: Sequence[tuple[str, StepSample]]) -> list[RegionFit]:
    """Errors of step times, for each region that samples are of."""
    found: dict[str, list[float]] = {}
    for region, sample in samples:
        found.setdefault(region, []).append(times.seconds(sample.shape) / sample.seconds - 1)
    return [
        RegionFit(region, len(errors), statistics.median(errors), _p95([abs(error) for error in errors]))
        for region, errors in sorted(found.items())
    ]


def spread(samples: Sequence[StepSample], most: int = 40) -> list[StepSample]:
    """Samples in which rare steps count as much as frequent ones: at most `most` of about the same sizes."""
    found: dict[tuple[int, ...], list[StepSample]] = {}
    for sample in samples:
        shape = sample.shape
        sizes = (shape.prefill_tokens, shape.decode_rows, shape.decode_context)
        found.setdefault(tuple(size.bit_length() for size in sizes), []).append(sample)
    return [sample for own in found.values() for sample in own[:: -(-len(own) // most)]]


def region_of(shape: StepShape) -> str:
    """Region of a step that was seen under load."""
    case = StepCase(rows=shape.decode_rows, proposals=shape.proposals, prompt=shape.prefill_tokens)
    return case.region


class _Steps:
    """Sequences in an executor's slots, whose tokens and blocks are there, so that any step on top of them can be run.

    Slots 0, 1, ... are rows that decode; behind them are those of prompts.
    """

    def __init__(self, executor: Executor, cases: Sequence[StepCase], vocab_size: int) -> None:
        self._executor = executor
        self._vocab_size = vocab_size
        lengths = _slot_lengths(cases)
        self._first_prompt = _most_rows(cases)
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
            tokens = self._tokens(case.cached, case.prompt)
            slots = range(self._first_prompt, self._first_prompt + case.prompts)
            rows += [Row(slot, case.cached, tokens, [], sample=True) for slot in slots]
        return self._run(rows)

    def _run(self, rows: list[Row], new: Sequence[NewSequence] = ()) -> StepSample:
        plan = StepPlan(0, [], list(new), [], rows)
        self._executor.submit(plan)
        return StepSample(shape_of(plan), self._executor.collect().elapsed_s)

    def _tokens(self, start: int, count: int) -> list[int]:
        return [(31 * place + 7) % self._vocab_size for place in range(start, start + count)]


def _slot_lengths(cases: Sequence[StepCase]) -> list[int]:
    """Tokens of the sequence in each slot, those of prompts last."""
    rows = range(_most_rows(cases))
    prompts = range(max((case.prompts for case in cases if case.prompt), default=0))
    decoded = [max(case.context + case.proposals for case in cases if case.rows > slot) for slot in rows]
    read = [max(case.cached + case.prompt for case in cases if case.prompt and case.prompts > slot) for slot in prompts]
    return decoded + read


def _most_rows(cases: Sequence[StepCase]) -> int:
    return max((case.rows for case in cases), default=0)


def _p95(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
