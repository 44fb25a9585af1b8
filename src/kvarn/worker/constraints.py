"""Changes of logits before temperature: masks, biases and penalties.

Only slots that use such a feature have a `TokenConstraints`; all others cost nothing. Every change is elementwise and
touches the slot's own row, so rows stay independent of each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kvarn.engine.plan import NewSequence
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.errors import InvalidSamplingError

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.bool_]
_NONE: Ids = np.empty(0, dtype=np.int64)

_STRONGEST = 1e15
"""Limit of biases and penalties (its inverse is that of repetition penalties): far beyond all logits, and far within
float32, so that logits stay finite for every request."""


def needs_constraints(sampling: SamplingParams) -> bool:
    return (
        _uses_penalties(sampling)
        or bool(sampling.logit_bias)
        or sampling.allowed_token_ids is not None
        or bool(sampling.bad_words)
        or sampling.min_tokens > 0
    )


def _uses_penalties(sampling: SamplingParams) -> bool:
    return sampling.repetition_penalty != 1.0 or sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0


class TokenCounts:
    """Distinct tokens of a sequence, far fewer than the vocabulary, and how often each is in its output."""

    def __init__(self, prompt: Iterable[int], output: Iterable[int]) -> None:
        self._places = {token: place for place, token in enumerate(dict.fromkeys(prompt))}
        capacity = max(64, 2 * len(self._places))
        self._ids: Ids = np.empty(capacity, dtype=np.int64)
        self._ids[: len(self._places)] = list(self._places)
        self._counts: Floats = np.zeros(capacity, dtype=np.float32)
        for token in output:
            self.add(token)

    @property
    def ids(self) -> Ids:
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> Floats:
        """[n] times each is in the output; 0 for tokens of the prompt only."""
        return self._counts[: len(self._places)]

    def add(self, token: int) -> None:
        place = self._place(token)  # first: it may put a larger array in the place of this one
        self._counts[place] += 1

    def _place(self, token: int) -> int:
        place = self._places.get(token)
        if place is not None:
            return place
        place = len(self._places)
        if place == len(self._ids):
            self._ids = np.concatenate((self._ids, np.empty_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._places[token] = place
        self._ids[place] = token
        return place


class BadWords:
    """Token sequences that may not appear, in prompt and output seen as one sequence (as in transformers)."""

    def __init__(self, words: Iterable[Sequence[int]], prompt: Sequence[int], output: Sequence[int]) -> None:
        self._always = [word[0] for word in words if len(word) == 1]
        self._after: dict[int, list[tuple[list[int], int]]] = {}
        for word in words:
            if len(word) > 1:
                self._after.setdefault(word[-2], []).append((list(word[:-1]), word[-1]))
        self._longest_prefix = max((len(word) - 1 for word in words), default=0)
        self._tail = [*prompt, *output]
        self._trim()

    def add(self, token: int) -> None:
        self._tail.append(token)
        self._trim()

    def banned(self) -> list[int]:
        if not self._tail:
            return self._always
        matches = self._after.get(self._tail[-1], [])
        return self._always + [last for prefix, last in matches if self._tail[-len(prefix) :] == prefix]

    def _trim(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._longest_prefix)]


class TokenConstraints:
    """The masks, biases and penalties of one slot, with the token history they need."""

    def __init__(self, new: NewSequence, vocab_size: int) -> None:
        sampling = new.sampling
        self.sampling = sampling
        self.num_output = len(new.output_token_ids)
        self._vocab_size = vocab_size
        self.allowed: Ids | None = None
        if sampling.allowed_token_ids is not None:
            self.allowed = _within(sampling.allowed_token_ids, vocab_size)
            if len(self.allowed) == 0:
                raise InvalidSamplingError(
                    new.slot, f"none of allowed_token_ids is in the vocabulary (0 to {vocab_size - 1})"
                )
        self.bias_ids = _within(sampling.logit_bias, vocab_size)
        self.bias_values: Floats = _bounded([sampling.logit_bias[int(i)] for i in self.bias_ids])
        self._stop_ids = list(sampling.stop_token_ids)
        prompt, output = new.prompt_token_ids, new.output_token_ids
        self._bad_words = BadWords(sampling.bad_words, prompt, output) if sampling.bad_words else None
        self.counts: TokenCounts | None = None
        if _uses_penalties(sampling):
            self.counts = TokenCounts(prompt if sampling.repetition_penalty != 1.0 else (), output)

    def add(self, token: int) -> None:
        self.num_output += 1
        if self._bad_words is not None:
            self._bad_words.add(token)
        if self.counts is not None:
            self.counts.add(token)

    def choices(self, mask: Bits | None) -> Ids | None:
        """The only tokens that may be drawn, None for all; where mask and `allowed_token_ids` have none in common, the
        mask's."""
        if mask is None:
            return self.allowed
        both = self.allowed[mask[self.allowed]] if self.allowed is not None else _NONE
        return both if len(both) else np.flatnonzero(mask)

    def banned(self, choices: Ids | None) -> Ids:
        """Tokens that may not come next: ends of bad words, and stop tokens before `min_tokens`. They are lifted
        where they would leave none of `choices`: masks and `allowed_token_ids` are the stronger demand."""
        tokens = set(self._bad_words.banned()) if self._bad_words is not None else set()
        if self.num_output < self.sampling.min_tokens:
            tokens.update(self._stop_ids)
        if not tokens:
            return _NONE
        banned = _within(tokens, self._vocab_size)
        nothing_left = len(banned) == self._vocab_size if choices is None else np.isin(choices, banned).all()
        return _NONE if nothing_left else banned


def _bounded(values: Sequence[float]) -> Floats:
    return np.clip(np.array(values, dtype=np.float64), -_STRONGEST, _STRONGEST).astype(np.float32)


def _within(tokens: Iterable[int], vocab_size: int) -> Ids:
    """The distinct tokens the model knows, in order; no other can be drawn, so no demand on it has any effect."""
    return np.array(sorted({token for token in tokens if 0 <= token < vocab_size}), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class ConstrainedRow:
    row: int
    constraints: TokenConstraints
    choices: Ids | None  # the only tokens that may be drawn, None for all


def apply_constraints(logits: torch.Tensor, rows: Sequence[ConstrainedRow]) -> None:
    """Change logits [R, vocab] (float32, contiguous) in place: masks, then bias, then penalties."""
    if not rows:
        return
    flat, vocab_size = logits.view(-1), logits.shape[1]
    for item in rows:
        if item.choices is not None:
            _keep_only(logits[item.row], torch.from_numpy(item.choices))
    banned = [(item.row, ids) for item in rows if len(ids := item.constraints.banned(item.choices))]
    if banned:
        flat[_flat_places(banned, vocab_size)] = -torch.inf
    biased = [item for item in rows if len(item.constraints.bias_ids)]
    if biased:
        places = _flat_places([(item.row, item.constraints.bias_ids) for item in biased], vocab_size)
        values = torch.from_numpy(np.concatenate([item.constraints.bias_values for item in biased]))
        flat[places] += values.to(flat.device)
    penalised = [(item, counts) for item in rows if (counts := item.constraints.counts) is not None]
    if penalised:
        _apply_penalties(flat, penalised, vocab_size)


def _keep_only(row: torch.Tensor, allowed: torch.Tensor) -> None:
    values = row[allowed]
    row.fill_(-torch.inf)
    row[allowed] = values


def _flat_places(ids_of_rows: Sequence[tuple[int, Ids]], vocab_size: int) -> torch.Tensor:
    """Places in the flattened logits of each row's token ids, all rows after one another."""
    offsets = np.array([row * vocab_size for row, _ in ids_of_rows], dtype=np.int64)
    ids = [part for _, part in ids_of_rows]
    return torch.from_numpy(np.concatenate(ids) + np.repeat(offsets, [len(part) for part in ids]))


def _apply_penalties(
    flat: torch.Tensor, penalised: Sequence[tuple[ConstrainedRow, TokenCounts]], vocab_size: int
) -> None:
    """Repetition (CTRL, Keskar et al. 2019), then frequency, then presence, on the tokens seen."""
    places = _flat_places([(item.row, counts.ids) for item, counts in penalised], vocab_size)
    lengths = [len(counts.ids) for _, counts in penalised]
    samplings = [item.constraints.sampling for item, _ in penalised]
    repetition = _spread([max(sampling.repetition_penalty, 1 / _STRONGEST) for sampling in samplings], lengths, flat)
    frequency = _spread([sampling.frequency_penalty for sampling in samplings], lengths, flat)
    presence = _spread([sampling.presence_penalty for sampling in samplings], lengths, flat)
    counts = torch.from_numpy(np.concatenate([part.counts for _, part in penalised])).to(flat.device)
    values = flat[places]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= frequency * counts
    values -= torch.where(counts > 0, presence, 0.0)
    flat[places] = values


def _spread(values: Sequence[float], lengths: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.repeat(_bounded(values), lengths)).to(like.device)
