"""Attention of whole texts without a mask, in torch, for encoders."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kvarn.kernels.batch import HeadShape


@dataclass(frozen=True, slots=True)
class EqualLengths:
    """Neighbouring texts of one length: their attention is one dense product without padding."""

    first_token: int
    last_token: int
    length: int


@dataclass(frozen=True, slots=True)
class TorchBidirectionalPlan:
    """See `kvarn.kernels.interface.BidirectionalPlan`."""

    heads: HeadShape
    runs: tuple[EqualLengths, ...]

    @staticmethod
    def of(lengths: torch.Tensor, heads: HeadShape) -> TorchBidirectionalPlan:
        """The runs of equal numbers in `lengths` [S]."""
        values, counts = torch.unique_consecutive(lengths, return_counts=True)
        runs: list[EqualLengths] = []
        token = 0
        for length, count in zip(values.tolist(), counts.tolist(), strict=True):
            runs.append(EqualLengths(token, token + length * count, length))
            token += length * count
        return TorchBidirectionalPlan(heads, tuple(runs))

    def run(self, qkv: torch.Tensor) -> torch.Tensor:
        """One dense product for each run."""
        qkv = qkv.view(len(qkv), 3, self.heads.query, self.heads.dim)
        out = qkv.new_empty((len(qkv), self.heads.query * self.heads.dim))
        for run in self.runs:
            part = qkv[run.first_token : run.last_token].view(-1, run.length, *qkv.shape[1:]).permute(2, 0, 3, 1, 4)
            attended = F.scaled_dot_product_attention(part[0], part[1], part[2])
            out[run.first_token : run.last_token] = attended.transpose(1, 2).flatten(2).flatten(0, 1)
        return out
