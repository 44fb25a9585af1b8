"""Token ids of many texts in, one vector or logit of each out, whatever layers compute them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F

from kvarn.models.loading.weights import WeightLoader
from kvarn.specs.spec import DecoderSpec, EncoderSpec, Pooling

TOKENS_AT_ONCE = 4096
"""Texts are computed in groups of about so many tokens: enough for full speed, and memory stays bounded."""


class TextEncoder(ABC):
    """A model that pools the states of a text's tokens.

    Args:
        spec: The model's.
        loader: Of its weights.
        pooling: Source of a text's vector.
        normalize: Scale each vector to length one.
        head: From vectors [S, hidden] to logits [S, 1]; None: the vector is the answer.
    """

    def __init__(
        self,
        spec: EncoderSpec | DecoderSpec,
        loader: WeightLoader,
        pooling: Pooling,
        normalize: bool,
        head: Callable[[torch.Tensor], torch.Tensor] | None,
    ) -> None:
        self.dtype = loader.dtype
        self.kernels = loader.kernels
        self.quantization = loader.quantization
        self.head = head
        self._activation_dtype = self.kernels.operations.activation_dtype(self.dtype)
        self._size = spec.hidden_size
        self._longest = spec.max_context_length
        self._pooling = pooling
        self._normalize = normalize

    @torch.inference_mode()
    def encode(self, token_ids: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """The vectors of S texts.

        token_ids: [T] int64, the texts one after the other, with their special tokens. starts: [S + 1], text s being
        token_ids[starts[s]:starts[s + 1]]; no text is empty or longer than `spec.max_context_length`. Returns
        [S, hidden] float32 vectors, or the logits [S, 1] of a head. A text's does not depend on the texts beside it.
        """
        lengths = (starts[1:] - starts[:-1]).to(torch.int64)
        if len(lengths) and not 0 < int(lengths.min()) <= int(lengths.max()) <= self._longest:
            raise ValueError(
                f"texts must have 1 to {self._longest} tokens, these have {int(lengths.min())} to {int(lengths.max())}"
            )
        out = torch.empty((len(lengths), self._size), dtype=torch.float32, device=token_ids.device)
        for texts in _grouped(lengths):
            spans = [token_ids[int(starts[s]) : int(starts[s + 1])] for s in texts]
            out[texts] = self._pool(self._states(torch.cat(spans), lengths[texts]), lengths[texts])
        if self.head is not None:
            return self.head(out.to(self._activation_dtype)).float()
        return F.normalize(out, dim=-1) if self._normalize else out

    @abstractmethod
    def _states(self, token_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """The states [T, hidden] of the tokens of texts of these lengths [S], before the final norm."""

    @abstractmethod
    def _normed(self, states: torch.Tensor) -> torch.Tensor:
        """Some rows of `_states` after the final norm, float32."""

    def _pool(self, states: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        ends = lengths.cumsum(0)
        match self._pooling:
            case "last":
                return self._normed(states[ends - 1])
            case "cls":
                return self._normed(states[ends - lengths])
            case "mean":
                text = torch.repeat_interleave(torch.arange(len(lengths), device=states.device), lengths)
                sums = states.new_zeros((len(lengths), states.shape[1]), dtype=torch.float32)
                return sums.index_add_(0, text, self._normed(states)) / lengths[:, None]


def _grouped(lengths: torch.Tensor) -> list[list[int]]:
    """Texts in order of their lengths [S], cut into groups of about TOKENS_AT_ONCE tokens."""
    groups: list[list[int]] = []
    free = 0
    for text in lengths.argsort(stable=True).tolist():
        length = int(lengths[text])
        if not groups or length > free:
            groups.append([])
            free = TOKENS_AT_ONCE
        groups[-1].append(text)
        free -= length
    return groups
