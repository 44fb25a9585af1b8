"""What a model is, as data: enough to build it, to size its cache and to plan for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvarn.costs.decoder import DecoderDimensions
from kvarn.kernels.activation import Activation


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding (Su et al. 2021) of one kind of layer."""

    inverse_frequencies: tuple[float, ...]
    """R angles per position, in radians; 2 R numbers of each head are rotated."""
    attention_factor: float = 1.0
    """Multiplies cosine and sine (YaRN, LongRoPE)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """A mixture of experts in place of a dense MLP."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    """Of one expert."""
    shared_intermediate_size: int = 0
    """Of the expert that every token visits; 0 is none."""
    renormalize: bool = True
    """The chosen experts' shares are scaled to sum to one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """What may differ between the layers of one decoder."""

    rope: RopeSpec
    window: int | None = None
    """Tokens a query sees, itself included; None sees all before it."""
    moe: MoeSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A decoder-only transformer."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Of a dense MLP."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context_length: int
    """Prompt and answer together, in tokens."""
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    attention_scale: float
    activation: Activation = "silu"
    tied_embeddings: bool = False
    norm_offset: float = 0.0
    """Added to the weight of every norm (Gemma stores w - 1)."""
    qkv_bias: bool = False
    output_bias: bool = False
    """Of the attention's output projection."""
    mlp_bias: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    """Norm of queries and keys: over each head, or over all heads of a token together (OLMo 2)."""
    embedding_scale: float = 1.0
    attention_softcap: float | None = None
    logits_softcap: float | None = None
    num_parameters: int = 0
    """Numbers in the checkpoint, tied ones counted once."""

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.layers)

    @property
    def dimensions(self) -> DecoderDimensions:
        """What the costs of its steps follow from."""
        mixtures = [layer.moe for layer in self.layers if layer.moe is not None]
        moe = mixtures[0] if mixtures else MoeSpec(num_experts=0, experts_per_token=0, intermediate_size=0)
        return DecoderDimensions(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            num_moe_layers=len(mixtures),
            num_experts=moe.num_experts,
            experts_per_token=moe.experts_per_token,
            expert_size=moe.intermediate_size,
            shared_expert_size=moe.shared_intermediate_size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """A bidirectional transformer that turns a text into one vector."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    max_context_length: int
    """Tokens of one text at most, special ones included."""
    max_positions: int
    """Rows of the table of position embeddings."""
    norm_eps: float
    position_offset: int = 0
    """Row of the first token's position."""
    num_token_types: int = 2
    activation: Activation = "gelu"
    pooling: Literal["mean", "cls"] = "mean"
    normalize: bool = True
    """Scale each vector to length one."""
    num_parameters: int = 0
