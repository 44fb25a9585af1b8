"""Attention of whole texts to both sides, in torch, for encoders."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kvarn.kernels.batch import HeadShape, Rotation
from kvarn.kernels.torch.attention import rotate


@dataclass(frozen=True, slots=True)
class TorchBidirectionalMetadata:
    heads: HeadShape
    window: int | None
    runs: tuple[tuple[slice, int], ...]
    """Tokens of neighbouring texts of one length, and that length: one dense product without padding."""

    @staticmethod
    def of(lengths: torch.Tensor, heads: HeadShape, window: int | None = None) -> TorchBidirectionalMetadata:
        """The runs of equal numbers in `lengths` [S]."""
        values, counts = torch.unique_consecutive(lengths, return_counts=True)
        ends = (values * counts).cumsum(0)
        starts = ends - values * counts
        spans = zip(starts.tolist(), ends.tolist(), values.tolist(), strict=True)
        return TorchBidirectionalMetadata(
            heads, window, tuple((slice(start, end), length) for start, end, length in spans)
        )

    def run(self, qkv: torch.Tensor, rotation: Rotation | None = None) -> torch.Tensor:
        qkv = qkv.view(len(qkv), 3, self.heads.query, self.heads.dim)
        if rotation is not None:
            heads = qkv[:, :2].flatten(1, 2)
            qkv = torch.cat([rotate(heads, rotation).view_as(qkv[:, :2]), qkv[:, 2:]], 1)
        out = qkv.new_empty((len(qkv), self.heads.query * self.heads.dim))
        for tokens, length in self.runs:
            part = qkv[tokens].view(-1, length, *qkv.shape[1:]).permute(2, 0, 3, 1, 4)
            attended = F.scaled_dot_product_attention(part[0], part[1], part[2], attn_mask=self._visible(length, qkv))
            out[tokens] = attended.transpose(1, 2).flatten(2).flatten(0, 1)
        return out

    def _visible(self, length: int, like: torch.Tensor) -> torch.Tensor | None:
        """[length, length] bool: which tokens each sees; None: all."""
        if self.window is None:
            return None
        positions = torch.arange(length, device=like.device)
        return (positions[:, None] - positions).abs() < self.window
