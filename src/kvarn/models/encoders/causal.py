"""A decoder that embeds (Qwen3-Embedding): a text is computed as a prompt is; its last token's state is its vector.

Of one that ranks (Qwen3-Reranker) the text is a pair, and its vector becomes a logit."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kvarn.kernels.batch import whole_texts
from kvarn.kernels.linear import Linear
from kvarn.models.attention.delta import DeltaNet
from kvarn.models.attention.grouped import LayerStep
from kvarn.models.attention.groups import LayerKinds
from kvarn.models.encoders.config import SentenceModules
from kvarn.models.encoders.encoder import check_lengths, grouped
from kvarn.models.families.table import FAMILIES
from kvarn.models.layer import load_final_norm, load_layer, scaled_embedding
from kvarn.models.loading.weights import WeightLoader
from kvarn.models.parallel.tensor import Shard
from kvarn.models.spec import DecoderSpec


class CausalEncoder:
    """As `kvarn.models.encoders.encoder.Encoder`, of a decoder's layers."""

    def __init__(
        self, spec: DecoderSpec, sentence: SentenceModules, loader: WeightLoader, head: Linear | None = None
    ) -> None:
        self.spec = spec
        self.dtype = loader.dtype
        self.kernels = loader.kernels
        self.quantization = loader.quantization
        self.head = head
        """What makes a logit of a pair's state; None where the state is the answer."""
        self._sentence = sentence
        names = FAMILIES[spec.architecture].names
        self._words = loader.embedding("model.embed_tokens", Shard.whole(spec.vocab_size), spec.hidden_size)
        self._layers = [load_layer(index, spec, names, loader) for index in range(spec.num_layers)]
        self._norm = load_final_norm(spec, loader)
        self._kinds = LayerKinds(spec.layers, self.kernels.device)

    @torch.inference_mode()
    def encode(self, token_ids: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """See `Encoder.encode`."""
        lengths = (starts[1:] - starts[:-1]).to(torch.int64)
        check_lengths(lengths, self.spec.max_context_length)
        out = torch.empty((len(lengths), self.spec.hidden_size), dtype=torch.float32, device=token_ids.device)
        for texts in grouped(lengths):
            spans = [token_ids[int(starts[s]) : int(starts[s + 1])] for s in texts]
            out[texts] = self._encode(torch.cat(spans), lengths[texts])
        if self.head is not None:
            return self.head(out.to(self.kernels.activation_dtype(self.dtype))).float()
        return F.normalize(out, dim=-1) if self._sentence.normalize else out

    def _encode(self, token_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """The vectors of a few texts, before they are scaled."""
        batch, num_blocks = whole_texts(lengths)
        attention = self._layers[0].attention
        assert not isinstance(attention, DeltaNet), "a model with recurrent states is not loaded to embed"
        # Each layer writes over what the last one has left. GPUs attend over no float32 numbers.
        cache = attention.new_cache(1, num_blocks, "bfloat16" if self.kernels.computes_beside_host else "float32")
        steps = [
            LayerStep(
                attention.plan(batch, window), self._kinds.rotation(kind, batch.positions), None, batch.slot_mapping
            )
            for kind, window in enumerate(self._kinds.windows)
        ]
        hidden = F.embedding(token_ids, self._words).to(self.kernels.activation_dtype(self.dtype))
        hidden = scaled_embedding(hidden, self.spec, self.dtype)
        for layer, kind in zip(self._layers, self._kinds.of_layer, strict=True):
            hidden = layer.forward(hidden, cache, 0, steps[kind])
        ends = lengths.cumsum(0)
        match self._sentence.pooling:
            case "last":
                return self._norm(hidden[ends - 1]).float()
            case "cls":
                return self._norm(hidden[ends - lengths]).float()
            case "mean":
                text = torch.repeat_interleave(torch.arange(len(lengths), device=hidden.device), lengths)
                sums = hidden.new_zeros((len(lengths), hidden.shape[1]), dtype=torch.float32)
                return sums.index_add_(0, text, self._norm(hidden).float()) / lengths[:, None]
