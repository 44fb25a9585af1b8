"""Decoders that embed (Qwen3-Embedding), or rank pairs of texts (Qwen3-Reranker)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kvarn.kernels.batch import whole_texts
from kvarn.kernels.linear import Linear
from kvarn.models.encoders.base import TextEncoder
from kvarn.models.encoders.config import SentenceModules
from kvarn.models.layer import load_norm, scaled_embedding
from kvarn.models.loading.weights import WeightLoader
from kvarn.models.parallel.tensor import Shard
from kvarn.models.spec import DecoderSpec
from kvarn.models.stack import LayerStack


class CausalEncoder(TextEncoder):
    """A decoder's layers; each text is a prompt of its own.

    Args:
        spec: The decoder's.
        sentence: Pooling and normalisation.
        loader: Of its weights.
        head: From a pair's state to its logit; None: the state is the answer.
    """

    def __init__(
        self, spec: DecoderSpec, sentence: SentenceModules, loader: WeightLoader, head: Linear | None = None
    ) -> None:
        super().__init__(spec, loader, sentence.pooling, sentence.normalize, head)
        self.spec = spec
        self._words = loader.embedding("model.embed_tokens", Shard.whole(spec.vocab_size), spec.hidden_size)
        # GPUs attend over no float32 numbers.
        self._stack = LayerStack(spec, loader, "bfloat16" if self.kernels.device.is_asynchronous else "float32")
        self._norm = load_norm("model.norm", spec, loader)

    def _states(self, token_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        batch, num_blocks = whole_texts(lengths)
        cache = self._stack.new_scratch_cache(num_blocks)
        hidden = F.embedding(token_ids, self._words).to(self._activation_dtype)
        hidden = scaled_embedding(hidden, self.spec, self.dtype)
        return self._stack.run(hidden, batch, self._stack.steps(batch, cache), 0, self.spec.num_layers)

    def _normed(self, states: torch.Tensor) -> torch.Tensor:
        return self.kernels.operations.norm(states, self._norm).float()
