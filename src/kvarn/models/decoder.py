"""The decoder: token ids in, logits out, keys and values into the paged cache."""

from __future__ import annotations

from functools import cached_property

import torch
import torch.nn.functional as F

from kvarn.kernels.batch import KVCache, KvDtype, PagedBatch, Rotation
from kvarn.kernels.linear import Linear, Norm
from kvarn.models.families import FAMILIES
from kvarn.models.layer import Heads, LayerStep, load_layer
from kvarn.models.spec import DecoderSpec, LayerSpec
from kvarn.models.weights import WeightLoader


class Decoder:
    """One rank of a decoder-only transformer, whole where there is one rank."""

    def __init__(self, spec: DecoderSpec, loader: WeightLoader, kv_dtype: KvDtype) -> None:
        self.spec = spec
        self.dtype = loader.dtype
        self.kv_dtype = kv_dtype
        self.kernels = loader.kernels
        self.quantization = loader.quantization
        self._parallel = loader.parallel
        self._heads = Heads.of(spec, loader.parallel)
        names = FAMILIES[spec.architecture].names
        self._layers = [
            load_layer(i, spec, names, loader, loader.kernels, loader.parallel) for i in range(spec.num_layers)
        ]
        self._norm = Norm(loader.norm("model.norm", spec.hidden_size, spec.norm_offset), spec.norm_eps)
        embedding, size = "model.embed_tokens", (spec.vocab_size, spec.hidden_size)
        self._head: Linear = loader.head(embedding if spec.tied_embeddings else "lm_head", *size)
        # Where both are one weight, it is held once, packed.
        self._embedding = None if spec.tied_embeddings else loader.embedding(embedding, *size)
        self._frequencies = {
            layer.rope: torch.tensor(layer.rope.inverse_frequencies, dtype=torch.float32) for layer in spec.layers
        }

    @property
    def layer_bytes(self) -> int:
        """Bytes that the products of all layers take as they are held: what a step reads of them."""
        return sum(layer.nbytes for layer in self._layers)

    @property
    def head_bytes(self) -> int:
        """Bytes of the output head as it is held."""
        return self._head.nbytes

    @property
    def input_products(self) -> list[Linear]:
        """The first product of each layer, which takes the hidden state: some to take the time of."""
        return [layer.qkv for layer in self._layers]

    def new_kv_cache(self, num_blocks: int) -> KVCache:
        """An empty cache of `num_blocks` blocks for this rank's heads."""
        return self.kernels.new_kv_cache(self.spec.num_layers, num_blocks, self._heads.shape, self.kv_dtype)

    @cached_property
    def _activation_dtype(self) -> torch.dtype:
        return self.kernels.activation_dtype(self.dtype)

    @torch.inference_mode()
    def forward(
        self, token_ids: torch.Tensor, batch: PagedBatch, cache: KVCache, logits_rows: torch.Tensor
    ) -> torch.Tensor:
        """Compute one step.

        token_ids: [T] int64. logits_rows: [R] int64, the tokens of the T whose next-token logits are wanted. Returns
        [R, vocab_size] float32. Keys and values of all T tokens are in the cache afterwards.
        """
        steps: dict[LayerSpec, LayerStep] = {}
        hidden = self._embed(token_ids)
        for index, layer in enumerate(self._layers):
            if layer.layer not in steps:
                steps[layer.layer] = self._step(batch, layer.layer)
            hidden = layer.forward(hidden, cache.keys[index], cache.values[index], steps[layer.layer])
        logits = self._parallel.all_gather(self._head(hidden[logits_rows], norm=self._norm)).float()
        if self.spec.logits_softcap is not None:
            logits = self.kernels.activation(logits / self.spec.logits_softcap, "tanh") * self.spec.logits_softcap
        return logits

    def _embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        share = self._parallel.vocab_share(self.spec.vocab_size)
        if len(share) == self.spec.vocab_size:
            hidden = self._look_up(token_ids)
        else:
            local = token_ids - share.start
            elsewhere = (local < 0) | (local >= len(share))
            hidden = self._look_up(local.masked_fill(elsewhere, 0))
            hidden = self._parallel.all_reduce(hidden.masked_fill_(elsewhere[:, None], 0))
        if self.spec.embedding_scale != 1.0:
            # The factor as the weights' type holds it, which is what the model was trained with.
            hidden = hidden * torch.tensor(self.spec.embedding_scale, dtype=self.dtype).to(hidden.dtype)
        return hidden

    def _look_up(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self._head.rows(ids) if self._embedding is None else F.embedding(ids, self._embedding)
        return rows.to(self._activation_dtype)

    def _step(self, batch: PagedBatch, layer: LayerSpec) -> LayerStep:
        angles = batch.positions[:, None].float() * self._frequencies[layer.rope]
        factor = layer.rope.attention_factor
        return LayerStep(
            plan=self.kernels.plan_attention(batch, len(self._heads.kv), layer.window),
            rotation=Rotation(cos=angles.cos() * factor, sin=angles.sin() * factor),
        )
