"""The time of a step as a linear function of its shape; the one formula that every prediction uses.

    seconds = fixed + a * prefill tokens + b * prefill pairs + c * (decode rows + proposals) + d * decode context

*Pairs* are (query, key) pairs of prompt chunks and proposals: the part of attention that grows with the square of the
length. A decode row that verifies proposals reads its context once; each proposal goes through the layers, the head and
the sampler like the row's own token.

A measured replica may have *further* seconds: a device takes longer for each row or token beyond the first ones, where
it computes rather than reads, or where what it computes with leaves the caches. An engine learns none while it serves.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(slots=True)
class StepShape:
    """Sizes of a step that its duration depends on. A row of one token counts as decode."""

    prefill_tokens: int = 0
    prefill_pairs: float = 0.0
    decode_rows: int = 0
    decode_context: int = 0
    proposals: int = 0

    @property
    def num_tokens(self) -> int:
        return self.prefill_tokens + self.decode_rows + self.proposals

    def add(self, start: int, num_tokens: int, sign: int = 1) -> None:
        """Add (or, with sign -1, take out) a row of tokens at positions `start`, `start + 1`, ..."""
        if num_tokens == 1:
            self.decode_rows += sign
            self.decode_context += sign * (start + 1)
        else:
            self.prefill_tokens += sign * num_tokens
            self.prefill_pairs += sign * pairs(start, num_tokens)

    def add_proposals(self, start: int, count: int) -> None:
        """Add tokens to verify, at positions `start`, `start + 1`, ..., to a row that is in the step."""
        self.proposals += count
        self.prefill_pairs += pairs(start, count)


FEW_ROWS, FEW_TOKENS = 32, 256


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds for each part of a step, all >= 0."""

    fixed_s: float = 0.0
    prefill_token_s: float = 0.0  # for a token of a prompt's chunk
    prefill_pair_s: float = 0.0  # for a (query, key) pair of a prompt's chunk
    decode_row_s: float = 0.0  # for a sequence that decodes, and for a proposal
    decode_token_s: float = 0.0  # for a cached token that a decoding sequence reads
    further_row_s: float = 0.0  # more for each sequence and proposal beyond FEW_ROWS
    further_token_s: float = 0.0  # more for each prompt token beyond FEW_TOKENS

    def seconds(self, shape: StepShape) -> float:
        prompts_s = self.prompt_s(shape.prefill_tokens, shape.prefill_pairs)
        return self.decode_s(shape.decode_rows + shape.proposals, shape.decode_context) + prompts_s

    def decode_s(self, rows: float, context: float) -> float:
        """Seconds of a step that only decodes; `context` is summed over its rows."""
        return self._rows_s(rows) + context * self.decode_token_s

    def decodes_s(self, rows: int, contexts: range) -> list[float]:
        """`seconds` of steps that only decode, the same to the last bit; `contexts` as in `decode_s`."""
        rows_s, token_s = self._rows_s(rows), self.decode_token_s
        return [rows_s + context * token_s for context in contexts]

    def prompt_s(self, tokens: float, num_pairs: float | None = None) -> float:
        """Seconds that tokens of prompts add to the steps that compute them; None: they are one whole prompt."""
        if num_pairs is None:
            num_pairs = tokens * (tokens + 1) / 2
        further = tokens - FEW_TOKENS
        further_s = further * self.further_token_s if further > 0 else 0.0
        return tokens * self.prefill_token_s + num_pairs * self.prefill_pair_s + further_s

    def _rows_s(self, rows: float) -> float:
        further = rows - FEW_ROWS
        return self.fixed_s + rows * self.decode_row_s + (further * self.further_row_s if further > 0 else 0.0)

    def scaled(self, factor: float) -> StepTimes:
        """The times of a device that takes `factor` times as long."""
        return StepTimes(**{name: factor * getattr(self, name) for name in self.__struct_fields__})


ExpectedStep = tuple[StepShape, float]
"""A step, and the seconds it is expected to take; more than 0."""


def pairs(start: float, num_tokens: float) -> float:
    """(query, key) pairs of a chunk that begins at position `start`."""
    return num_tokens * start + num_tokens * (num_tokens + 1) / 2


def typical_steps() -> list[StepShape]:
    """Different steps, whose times tell the coefficients of `StepTimes` from each other."""
    shapes = [_shape(batch, context) for batch, context in _DECODES]
    shapes += [_shape(0, 0, tokens, start) for tokens, start in _PROMPTS]
    shapes += [_shape(batch, 512, tokens) for batch, tokens in _MIXED]
    for batch, proposals in _VERIFIED:
        shapes.append(_shape(batch, 512))
        for _ in range(batch):
            shapes[-1].add_proposals(512, proposals)
    return shapes


_DECODES = ((1, 64), (1, 4096), (8, 256), (32, 256), (32, 2048), (128, 512))
"""(batch, context) of expected steps."""
_PROMPTS = ((16, 0), (64, 0), (256, 0), (1024, 0), (256, 4096), (1024, 4096))
"""(tokens, cached tokens before them), alone."""
_MIXED = ((1, 64), (8, 64), (8, 256), (32, 64), (32, 256))
"""(decode rows of 512 tokens, prompt tokens beside them)."""
_VERIFIED = ((1, 4), (1, 8), (8, 4))
"""(decode rows of 512 tokens, proposals that each verifies)."""


def _shape(batch: int, context: int, prompt: int = 0, start: int = 0) -> StepShape:
    shape = StepShape(decode_rows=batch, decode_context=batch * context)
    if prompt:
        shape.add(start, prompt)
    return shape
