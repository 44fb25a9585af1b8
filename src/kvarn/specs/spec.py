"""A model as data: enough to build it, to size its cache and to plan for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from kvarn.shapes.activation import Activation
from kvarn.shapes.decoder import DecoderShape, LayerShape
from kvarn.shapes.router import RouterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding (Su et al. 2021) of one kind of layer."""

    inverse_frequencies: tuple[float, ...]
    """R angles per position, in radians; 2 R numbers of each head are rotated."""
    attention_factor: float = 1.0
    """Multiplies cosine and sine (YaRN, LongRoPE)."""


UNROTATED = RopeSpec(inverse_frequencies=())


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec(LayerShape):
    rope: RopeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderLayerSpec:
    rope: RopeSpec = UNROTATED
    window: int | None = None
    """Tokens that a token sees to either side, itself included; None: all of its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec(DecoderShape):
    architecture: str
    max_context_length: int
    """Prompt and answer together, in tokens."""
    layers: Sequence[LayerSpec]
    norm_eps: float
    attention_scale: float
    activation: Activation = "silu"
    tied_embeddings: bool = False
    norm_offset: float = 0.0
    """Added to the weight of every norm (Gemma stores w - 1)."""
    layer_norm: bool = False
    """Norms are layer norms without a bias; else root-mean-square norms."""
    parallel_blocks: bool = False
    """The MLP takes what the attention takes: both are added to the residual stream beside each other (Cohere)."""
    interleaved_rope: bool = False
    """In the checkpoint's weights, angle i turns numbers 2 i and 2 i + 1 of a head; else numbers i and i + R."""
    qkv_bias: bool = False
    output_bias: bool = False  # bias of the attention's output projection
    mlp_bias: bool = False
    router: RouterSpec = field(default_factory=RouterSpec)
    stacked_experts: bool = False
    """The checkpoint's tensors hold the weights of all experts, gate and up in turn, and biases (gpt-oss)."""
    swiglu: tuple[float, float] | None = None
    """Limit and alpha of experts' gates (`ClampedSwiglu`); None: they are those of dense MLPs."""
    sinks: bool = False
    """Each head has a score that takes its share of attention's weights (gpt-oss)."""
    qk_norm: Literal["none", "head", "full", "layer"] = "none"
    """Norm of queries and keys: over each head, or over all heads of a token together (OLMo 2). `layer`: a layer norm
    over each head, which has weights of its own (Command R+)."""
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    """Factor of what each half of a layer adds to the residual stream (Granite)."""
    logits_scale: float = 1.0
    """Before `logits_softcap`."""
    attention_softcap: float | None = None
    logits_softcap: float | None = None
    num_parameters: int = 0
    """Numbers in the checkpoint, tied ones counted once."""


Pooling = Literal["mean", "cls", "last"]
"""Source of a text's vector: all of its tokens, the first or the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierSpec:
    """A head with one hidden layer and one label."""

    activation: Activation = "tanh"
    bias: bool = True
    """Bias of the hidden layer."""
    pair_types: bool = False
    """Tokens of a pair's second text have type 1."""


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
    layers: tuple[EncoderLayerSpec, ...]
    norm_eps: float
    max_positions: int = 0
    """Rows of the table of position embeddings; 0: there is none."""
    position_offset: int = 0
    """Row of the first token's position."""
    num_token_types: int = 0
    """Rows of the table of token types; 0: there is none."""
    pre_norm: bool = False
    """Each half of a layer norms its input, and a norm follows the last layer; else each norms its sum (BERT)."""
    gated: bool = False
    """The MLP is down(activation(gate(x)) * up(x))."""
    attention_bias: bool = True
    mlp_bias: bool = True
    norm_bias: bool = True
    activation: Activation = "gelu"
    pooling: Pooling = "mean"
    normalize: bool = True  # scale each vector to length one
    classifier: ClassifierSpec | None = None
    """Head over a text's vector; None: the vector is the answer."""
    num_parameters: int = 0
