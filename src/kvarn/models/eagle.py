"""An EAGLE-3 head: one layer that guesses what a decoder will say from what passes through it.

At position i it reads the hidden states that left three of the decoder's layers there, and the token that follows, and
predicts the token after that. For tokens that the decoder has not computed, its own output stands for those states. Its
tokens come from a vocabulary of its own, part of the decoder's. Source: Li et al., "EAGLE-3: scaling up inference
acceleration of large language models via training-time test", 2025; names of tensors as published heads have them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field

from kvarn.kernels.attention import AttentionLayer
from kvarn.kernels.batch import HeadShape, KVCache, PagedBatch
from kvarn.models.attention.base import LayerGroups
from kvarn.models.decoder import EMBEDDING, Decoder
from kvarn.models.loading.checkpoint import Checkpoint
from kvarn.models.loading.weights import WeightLoader
from kvarn.models.mlp.dense import DenseMlp
from kvarn.models.parallel.tensor import Parallel
from kvarn.shapes.attention import GroupedDimensions
from kvarn.specs.errors import UnsupportedModelError
from kvarn.specs.families.decoder_spec import decoder_spec
from kvarn.specs.families.hf_config import CheckpointKind, DecoderConfig, Layers, Vocabulary
from kvarn.specs.families.table import FAMILIES
from kvarn.specs.mlp import MlpProducts
from kvarn.specs.place import Shard
from kvarn.specs.products import LinearSpec
from kvarn.text.architectures import HEADS
from kvarn.text.config_files import CheckpointFile


class HiddenLayers(CheckpointFile):
    """`eagle_config` of config.json."""

    eagle_aux_hidden_state_layer_ids: Annotated[list[Layers], Field(min_length=3, max_length=3)] | None = None


class EagleConfig(DecoderConfig):
    draft_vocab_size: Vocabulary | None = None
    eagle_config: HiddenLayers = HiddenLayers()


class EagleHead:
    """A head over a loaded decoder. It guesses tokens one by one; what it guesses has no effect on the decoder. Of a
    decoder whose layers several ranks share, rank 0 has the whole head: the hidden states it reads are the same on all.

    Args:
        config: The head's.
        loader: Of its weights.
        target: The decoder, or this rank's part of it.
        table: The decoder's embeddings of all tokens, where `target` has not all of them.
    """

    def __init__(
        self, config: EagleConfig, loader: WeightLoader, target: Decoder, table: torch.Tensor | None = None
    ) -> None:
        spec = decoder_spec("LlamaForCausalLM", config)
        hidden, eps = spec.hidden_size, spec.norm_eps
        self.kernels = loader.kernels
        self._target = target
        self._table = table
        self._layer = AttentionLayer(spec.attention_scale)
        attention = spec.layers[0].attention
        assert isinstance(attention, GroupedDimensions), "Llama's"
        self.heads = HeadShape(attention.num_heads, attention.num_kv_heads, attention.head_dim)
        depth = target.spec.num_layers
        self.aux_layers = tuple(config.eagle_config.eagle_aux_hidden_state_layer_ids or (2, depth // 2, depth - 3))
        """The hidden states it reads are those that leave so many of the decoder's layers."""
        if not all(0 < layer <= depth for layer in self.aux_layers):
            raise UnsupportedModelError(
                f"the EAGLE-3 head reads the output of layers {list(self.aux_layers)}, but the model has {depth}: it "
                "was trained for another model"
            )
        whole, queries = Shard.whole(hidden), Shard.whole(self.heads.query * self.heads.dim)
        keys = Shard.whole(self.heads.kv * self.heads.dim)
        states = Shard.whole(len(self.aux_layers) * target.spec.hidden_size)
        self._join = loader.linear(LinearSpec(names=("fc",), outputs=(whole,), inputs=states))
        qkv = tuple(f"midlayer.self_attn.{part}_proj" for part in "qkv")
        self._qkv = loader.linear(LinearSpec(names=qkv, outputs=(queries, keys, keys), inputs=Shard.whole(2 * hidden)))
        output = LinearSpec(names=("midlayer.self_attn.o_proj",), outputs=(whole,), inputs=queries)
        self._output = loader.linear(output)
        names = FAMILIES["LlamaForCausalLM"].names
        self._mlp = DenseMlp.load(
            MlpProducts.of("midlayer.mlp", spec.intermediate_size, spec, names, loader.parallel), loader
        )
        self._token_norm = loader.norm("midlayer.input_layernorm", hidden, eps)
        self._state_norm = loader.norm("midlayer.hidden_norm", hidden, eps)
        self._mlp_norm = loader.norm("midlayer.post_attention_layernorm", hidden, eps)
        self._norm = loader.norm("norm", hidden, eps)
        vocabulary = config.draft_vocab_size or spec.vocab_size
        head = LinearSpec(names=("lm_head",), outputs=(Shard.whole(vocabulary),), inputs=whole, role="head")
        self._head = loader.linear(head)
        self._tokens = _draft_tokens(loader, vocabulary, target.spec.vocab_size)
        self._groups = LayerGroups([(spec.layers[0].rope, attention)], self.kernels.device.torch_device)

    @property
    def nbytes(self) -> int:
        """Bytes of its products: what it reads for one guess."""
        return sum(part.nbytes for part in (self._qkv, self._output, self._mlp, self._head))

    def new_kv_cache(self, num_blocks: int) -> KVCache:
        return self.kernels.operations.new_kv_cache(1, num_blocks, self.heads, self._target.kv_dtype)

    def zero_hidden(self) -> torch.Tensor:
        """[1, hidden] zeros: an input for `forward` where its outcome does not matter."""
        dtype = self.kernels.operations.activation_dtype(self._target.dtype)
        return torch.zeros(1, self._norm.weight.shape[-1], dtype=dtype, device=self.kernels.device.torch_device)

    @torch.inference_mode()
    def read(self, states: torch.Tensor) -> torch.Tensor:
        """Hidden states of the decoder's `aux_layers`, side by side [T, 3 hidden], as the head's own [T, hidden]."""
        return self._join(states)

    @torch.inference_mode()
    def forward(
        self, hidden: torch.Tensor, next_token_ids: torch.Tensor, batch: PagedBatch, cache: KVCache
    ) -> torch.Tensor:
        """Compute the head's layer.

        hidden: [T, hidden], of `read` or of an earlier call; changed in place. next_token_ids: [T] int64, the token
        that follows each position. Returns [T, hidden]: what `guess` reads, and what stands for the decoder's hidden
        states at the next position.
        """
        kernels = self.kernels
        tokens = kernels.operations.rms_norm(self._target.embed(next_token_ids, self._table), self._token_norm)
        qkv = self._qkv(torch.cat([tokens, kernels.operations.rms_norm(hidden, self._state_norm)], dim=-1))
        plan, rotation = kernels.operations.plan_attention(batch, self.heads), self._groups.rotation(0, batch.positions)
        mixed = plan.run(qkv, rotation, self._layer, cache.keys[0], cache.values[0])
        hidden = self._output(mixed, add_to=hidden)
        return self._mlp.forward(hidden, self._mlp_norm, add_to=hidden)

    @torch.inference_mode()
    def guess(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R] int64: the most likely token after the one that each of these [R, hidden] was computed with."""
        return self._tokens[self.kernels.operations.most_likely(self._head(hidden, norm=self._norm).float())[0]]


def _draft_tokens(loader: WeightLoader, size: int, target_size: int) -> torch.Tensor:
    """[size] int64: the decoder's token for each of the head's own. `d2t` holds the differences of their ids."""
    own = torch.arange(size)
    tokens = own + loader.plain("d2t", (size,)).long() if "d2t" in loader else own
    if tokens.min() < 0 or tokens.max() >= target_size:
        raise UnsupportedModelError(f"d2t of the EAGLE-3 head names tokens beyond the model's {target_size}")
    return tokens.to(loader.device)


def load_eagle_head(path: Path, target: Decoder, target_path: Path | None = None) -> EagleHead:
    """The head in directory `path`, in the type of the decoder's weights, unquantized. `target_path`: of the decoder's
    checkpoint, needed where several ranks hold it.

    Raises:
        ModelError: It is no EAGLE-3 head, or one of another decoder; the message says what is wrong.
    """
    checkpoint = Checkpoint(path)
    names = checkpoint.validated(CheckpointKind).architectures
    if not any(name in HEADS for name in names):
        raise UnsupportedModelError(
            f"{path} holds {', '.join(names) or 'a model without `architectures`'}: an EAGLE-3 head is one of "
            f"{', '.join(HEADS)}"
        )
    config = checkpoint.validated(EagleConfig)
    if config.vocab_size != target.spec.vocab_size or config.hidden_size != target.spec.hidden_size:
        raise UnsupportedModelError(
            f"the EAGLE-3 head in {path} is of a model with a vocabulary of {config.vocab_size} and hidden size "
            f"{config.hidden_size}, the served one has {target.spec.vocab_size} and {target.spec.hidden_size}: take "
            "the head that was trained for it"
        )
    loader = WeightLoader(checkpoint, target.kernels, target.dtype, Parallel())
    table = None
    if not target.has_whole_vocabulary:
        assert target_path is not None, "a rank has not all embeddings: they are read from the decoder's checkpoint"
        of_target = WeightLoader(Checkpoint(target_path), target.kernels, target.dtype, Parallel())
        table = of_target.embedding(EMBEDDING, Shard.whole(target.spec.vocab_size), target.spec.hidden_size)
    head = EagleHead(config, loader, target, table)
    loader.finish()
    return head
