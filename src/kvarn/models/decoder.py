"""The decoder: token ids in, logits out, keys and values into the paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F

from kvarn.costs.decoder import DecoderCosts, loaded_costs
from kvarn.kernels.adapters import AdapterMemory
from kvarn.kernels.batch import KVCache, PagedBatch
from kvarn.kernels.decoder import GreedyDecoder, GreedyParts
from kvarn.kernels.linear import Linear, Norm
from kvarn.models.layer import load_norm, scaled_embedding
from kvarn.models.loading.weights import WeightLoader
from kvarn.models.mlp.experts import Experts, stack_visits
from kvarn.models.mlp.moe import MoeMlp
from kvarn.models.stack import LayerStack
from kvarn.shapes import KvDtype
from kvarn.specs.place import Shard
from kvarn.specs.products import LinearSpec
from kvarn.specs.spec import DecoderSpec

EMBEDDING = "model.embed_tokens"
"""Its name in checkpoints."""


@dataclass(slots=True)
class HiddenStates:
    """Takes the residual stream where it leaves some layers, for a head that reads it."""

    layers: tuple[int, ...]
    """Numbers of layers, counted from 1."""
    taken: dict[int, torch.Tensor] = field(default_factory=dict)
    """[T, hidden] by layer, in the activations' type."""
    batch: PagedBatch | None = None  # the step that they are of

    def joined(self) -> torch.Tensor:
        return torch.cat([self.taken[layer] for layer in self.layers], dim=-1)


class Decoder:
    """One rank of a decoder-only transformer, whole where there is one rank."""

    def __init__(self, spec: DecoderSpec, loader: WeightLoader, kv_dtype: KvDtype) -> None:
        self.spec = spec
        self.dtype = loader.dtype
        self.kv_dtype = kv_dtype
        self.kernels = loader.kernels
        self.quantization = loader.quantization
        self._parallel = loader.parallel
        self._activation_dtype = self.kernels.operations.activation_dtype(self.dtype)
        self.adapted_layers: Sequence[tuple[LinearSpec, Linear]] = loader.layers
        """The layers that adapters can change, by `Linear.adapter_layer`."""
        stage = loader.parallel.stage
        self._stack = LayerStack(spec, loader, kv_dtype)
        self._norm = load_norm("model.norm", spec, loader)
        self._vocabulary = loader.parallel.vocab_share(spec.vocab_size)
        embedding, hidden = EMBEDDING, Shard.whole(spec.hidden_size)
        head = embedding if spec.tied_embeddings else "lm_head"
        head_spec = LinearSpec(names=(head,), outputs=(self._vocabulary,), inputs=hidden, role="head")
        looks_up = stage.is_first and spec.tied_embeddings
        self._head: Linear | None = loader.linear(head_spec) if stage.is_last or looks_up else None
        # Where both are one weight, it is held once, packed.
        self._embedding = (
            loader.embedding(embedding, self._vocabulary, spec.hidden_size)
            if stage.is_first and not spec.tied_embeddings
            else None
        )
        self.reads_shared_prefixes = self.kernels.operations.reads_shared_prefixes and spec.reads_shared_prefixes
        """Steps may say which prefixes several sequences share: see `PagedBatch.shares_prefix`."""
        self.expert_visits = stack_visits(self.expert_layers.values())
        """[layers, experts] int64: `Experts.tokens` of the layers that count on the device; None: none do."""

    @property
    def layer_bytes(self) -> int:
        """Bytes that the products of all layers take as they are held: what a step reads of them."""
        return self._stack.nbytes

    @property
    def head_bytes(self) -> int:
        return 0 if self._head is None else self._head.nbytes

    @property
    def costs(self) -> DecoderCosts:
        """Bytes and operations of its steps, weights as they are held."""
        return loaded_costs(
            self.spec,
            layer_bytes=self.layer_bytes,
            head_bytes=self.head_bytes,
            kv_bytes_per_token=self.spec.kv_bytes_per_token(self.kv_dtype),
        )

    @property
    def input_products(self) -> list[Linear]:
        """The first product of each layer, which takes the hidden state: some to take the time of."""
        return [layer.attention.products[0] for layer in self._stack.layers]

    @property
    def expert_layers(self) -> dict[int, Experts]:
        layers = enumerate(self._stack.layers, start=self._stack.first_layer)
        return {index: layer.mlp.experts for index, layer in layers if isinstance(layer.mlp, MoeMlp)}

    @property
    def can_be_captured(self) -> bool:
        """Whether a GPU may repeat a step without the host. One of several ranks may not: NCCL asks of all that they
        capture the same steps, and ends no group while a graph refers to it."""
        alone = self._parallel.world_size == 1
        return (
            alone
            and self.kernels.operations.captures_steps
            and all(layer.can_be_captured for layer in self._stack.layers)
        )

    def new_kv_cache(self, num_blocks: int, num_states: int = 0) -> KVCache:
        """An empty cache of `num_blocks` blocks for this rank's heads, with so many recurrent states where its layers
        have such."""
        return self._stack.new_cache(num_blocks, num_states)

    def new_adapter_memory(self, cache: KVCache) -> AdapterMemory:
        """Room for adapters in the blocks of a cache; their weights are held as plain ones are."""
        return self.kernels.operations.new_adapter_memory(cache, self.dtype)

    def greedy_passes(self, cache: KVCache) -> GreedyDecoder | None:
        """Many passes in one call over this cache, each of the likeliest tokens of the one before; None for models that
        need single passes."""
        spec, groups, norm = self.spec, self._stack.groups, self._norm
        plain = spec.logits_softcap is None and spec.embedding_scale == 1.0 and self._embedding is None
        if not plain or self._parallel.world_size > 1 or self._parallel.stage.count > 1 or self._head is None:
            return None
        if not isinstance(norm, Norm) or self._stack.joined is None:
            return None
        parts = GreedyParts(
            layers=self._stack.joined,
            norm=norm,
            head=self._head,
            windows=[kind.sliding_window for kind in groups.kinds],
            rotations=[partial(groups.rotation, group) for group in range(len(groups))],
        )
        return self.kernels.operations.greedy_decoder(parts, cache)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: torch.Tensor,
        batch: PagedBatch,
        cache: KVCache,
        logits_rows: torch.Tensor,
        hidden_states: HiddenStates | None = None,
    ) -> torch.Tensor:
        """Compute one step.

        token_ids: [T] int64. logits_rows: [R] int64, the tokens of the T whose next-token logits are wanted. Returns
        [R, vocab_size] float32, or [0, vocab_size] on a stage that is not the last. Keys and values of all T tokens are
        in the cache afterwards, and in `hidden_states` what left the layers that it names.
        """
        return self.logits(self.last_hidden(token_ids, batch, cache, logits_rows, hidden_states))

    @torch.inference_mode()
    def last_hidden(
        self,
        token_ids: torch.Tensor,
        batch: PagedBatch,
        cache: KVCache,
        logits_rows: torch.Tensor,
        hidden_states: HiddenStates | None = None,
    ) -> torch.Tensor:
        """`forward` up to the logits: the residual stream [R, hidden] behind the last layer, or [0, hidden]."""
        steps = self._stack.steps(batch, cache)
        if hidden_states is not None:
            hidden_states.batch = batch
        stage = self._parallel.stage
        if stage.is_first:
            hidden = self.embed(token_ids)
        else:
            hidden = self._parallel.receive((len(token_ids), self.spec.hidden_size), self._activation_dtype)
        first, count = 0, len(self._stack.layers)
        if hidden_states is not None:
            for last in sorted({each for each in hidden_states.layers if each <= count}):
                hidden = self._stack.run(hidden, batch, steps, first, last)
                hidden_states.taken[last] = hidden.clone()
                first = last
        if first < count:
            hidden = self._stack.run(hidden, batch, steps, first, count)
        if not stage.is_last:
            self._parallel.send(hidden)
            return hidden[:0]
        return hidden[logits_rows]

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, vocab_size] float32 of rows of `last_hidden`, all of them or some; all ranks ask for the same."""
        if not self._parallel.stage.is_last:
            return hidden.new_empty((0, self.spec.vocab_size), dtype=torch.float32)
        assert self._head is not None, "the last stage has the head"
        if isinstance(self._norm, Norm):
            logits = self._head(hidden, norm=self._norm)
        else:
            logits = self._head(self.kernels.operations.norm(hidden, self._norm))
        if self._parallel.world_size > 1:
            logits = F.pad(logits, (0, -(-self.spec.vocab_size // self._parallel.world_size) - logits.shape[1]))
            logits = self._parallel.all_gather(logits)[:, : self.spec.vocab_size].contiguous()
        logits = logits.float()
        if self.spec.logits_scale != 1.0:
            logits *= self.spec.logits_scale
        if self.spec.logits_softcap is not None:
            logits = (
                self.kernels.operations.activation(logits / self.spec.logits_softcap, "tanh") * self.spec.logits_softcap
            )
        return logits

    @property
    def has_whole_vocabulary(self) -> bool:
        return self._vocabulary.is_whole

    def embed(self, token_ids: torch.Tensor, table: torch.Tensor | None = None) -> torch.Tensor:
        """The residual stream [T, hidden] before the first layer. token_ids: [T] int64. `table`: the embeddings of all
        tokens [vocab_size, hidden], for a call that the other ranks do not join."""
        held = self._vocabulary.held
        if table is not None:
            hidden = F.embedding(token_ids, table).to(self._activation_dtype)
        elif self._vocabulary.is_whole:
            hidden = self._look_up(token_ids)
        else:
            local = token_ids - held.start
            elsewhere = (local < 0) | (local >= len(held))
            hidden = self._look_up(local.masked_fill(elsewhere, 0))
            # To add minus zero changes no number, not even the sign of a zero.
            hidden = self._parallel.all_reduce(hidden.masked_fill_(elsewhere[:, None], -0.0))
        return scaled_embedding(hidden, self.spec, self.dtype)

    def _look_up(self, ids: torch.Tensor) -> torch.Tensor:
        if self._embedding is not None:
            return F.embedding(ids, self._embedding).to(self._activation_dtype)
        assert self._head is not None, "a tied embedding is the head's weight"
        return self._head.rows(ids).to(self._activation_dtype)
