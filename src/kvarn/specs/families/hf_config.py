"""Hugging Face's config.json, validated: every field that Kvarn reads, its type and its bounds.

Both spellings are read: transformers 5 writes `rope_parameters`, `layer_types` and `dtype`; checkpoints on the hub
mostly have `rope_theta`, `rope_scaling`, family-specific window fields and `torch_dtype`. Bounds are several times what
published models have; they catch damage before something is computed or allocated by it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from kvarn.shapes.activation import Activation
from kvarn.specs.errors import UnsupportedModelError
from kvarn.specs.quantization import QuantizationConfig
from kvarn.text.config_files import CheckpointFile, EndTokens

Layers = Annotated[int, Field(ge=1, le=1024)]
Heads = Annotated[int, Field(ge=1, le=1024)]
HeadDim = Annotated[int, Field(ge=2, le=1024, multiple_of=2)]
Width = Annotated[int, Field(ge=1, le=2**20)]
"""Features of a hidden state or of an MLP."""
Vocabulary = Annotated[int, Field(ge=1, le=2**24)]
Experts = Annotated[int, Field(ge=1, le=4096)]
Length = Annotated[int, Field(ge=1, le=2**31 - 1)]  # tokens
Epsilon = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, le=1e12)]

_DTYPES = frozenset(
    {"float64", "double", "float32", "float", "float16", "half", "bfloat16"}
    | {"float8_e4m3fn", "float8_e5m2", "int8", "uint8"}
)
_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


def _dtype(value: object) -> object:
    name = value.removeprefix("torch.") if isinstance(value, str) else None
    if name not in _DTYPES:
        raise PydanticCustomError("dtype", "expected a type of torch, such as bfloat16, float16 or float32")
    return name


class RopeParameters(CheckpointFile):
    """`rope_parameters` of transformers 5, or `rope_scaling` of earlier ones."""

    rope_type: str = Field("default", validation_alias=AliasChoices("rope_type", "type"))
    rope_theta: float | None = Field(None, gt=1, le=1e15)
    partial_rotary_factor: float | None = Field(None, gt=0, le=1)
    factor: float | None = Field(None, gt=0, le=1e6)
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    original_max_position_embeddings: Length | None = None
    attention_factor: Positive | None = None
    beta_fast: Positive | None = None
    beta_slow: Positive | None = None
    mscale: Positive | None = None
    mscale_all_dim: Positive | None = None
    truncate: bool | None = None
    short_factor: list[Positive] | None = Field(None, max_length=512)
    long_factor: list[Positive] | None = Field(None, max_length=512)

    full_attention: RopeParameters | None = None
    """Each layer type's own, where they differ (Gemma 3)."""
    sliding_attention: RopeParameters | None = None

    def filled(self, theta: float, rotated_share: float, original_length: int) -> RopeParameters:
        """With what the whole model says, where the embedding itself says nothing."""
        return self.model_copy(
            update={
                "rope_theta": self.rope_theta or theta,
                "partial_rotary_factor": self.partial_rotary_factor or rotated_share,
                "original_max_position_embeddings": self.original_max_position_embeddings or original_length,
            }
        )

    @model_validator(mode="after")
    def _frequencies_are_apart(self) -> RopeParameters:
        if self.low_freq_factor is not None and self.low_freq_factor == self.high_freq_factor:
            raise PydanticCustomError("equal_factors", "low_freq_factor and high_freq_factor must differ")
        return self


class CheckpointKind(CheckpointFile):
    """The fields by which the architecture is known; the others are validated as that architecture's."""

    architectures: list[str] = Field([], max_length=64)
    model_type: str = ""
    dtype: Annotated[str, BeforeValidator(_dtype)] = Field(
        "float32", validation_alias=AliasChoices("dtype", "torch_dtype")
    )
    """Type of the stored weights."""
    quantization_config: QuantizationConfig | None = Field(
        None, validation_alias=AliasChoices("quantization_config", "compression_config")
    )


class HfConfig(CheckpointKind):
    eos_token_id: EndTokens = Field([])
    vocab_size: Vocabulary
    hidden_size: Width
    intermediate_size: Width
    num_hidden_layers: Layers
    num_attention_heads: Heads
    max_position_embeddings: Length
    hidden_act: str | None = None
    hidden_activation: str | None = None
    """Gemma's; overrides its historical `hidden_act`."""

    def activation(self) -> Activation:
        return activation_named(self.hidden_activation or self.hidden_act or "silu")


def activation_named(name: str) -> Activation:
    """The activation that config.json calls so. Raises UnsupportedModelError."""
    if name not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"activation {name!r} is not supported; there are: {', '.join(sorted(_ACTIVATIONS))}"
        )
    return _ACTIVATIONS[name]


class EncoderConfig(HfConfig):
    hidden_act: str | None = "gelu"
    is_decoder: bool = False
    layer_norm_eps: Epsilon = 1e-12
    type_vocab_size: Annotated[int, Field(ge=1, le=4096)] = 2
    pad_token_id: Annotated[int, Field(ge=0, le=2**24)] = 1
    position_embedding_type: str = "absolute"

    id2label: Annotated[dict[str, str], Field(max_length=2**20)] | None = None
    """Labels of a classifier; absent: two."""

    classifier_pooling: Literal["cls", "mean"] = "cls"
    classifier_bias: bool = False
    classifier_activation: str = "gelu"
    norm_eps: Epsilon = 1e-5
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    local_attention: Annotated[int, Field(ge=2, le=2**31 - 1)] = 128
    """Tokens of a window: half of them to either side."""
    global_attn_every_n_layers: Annotated[int, Field(ge=1, le=1024)] = 3
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = Field(None, max_length=1024)
    rope_parameters: RopeParameters = RopeParameters()
    global_rope_theta: float = Field(160_000.0, gt=1, le=1e15)
    local_rope_theta: float = Field(10_000.0, gt=1, le=1e15)
    """ModernBERT's, from `classifier_pooling` on."""
    rope_scaling: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _fields_agree(self) -> EncoderConfig:
        _check_division(self.hidden_size, "hidden_size", self.num_attention_heads, "num_attention_heads")
        if self.layer_types is not None and len(self.layer_types) != self.num_hidden_layers:
            raise PydanticCustomError("layer_types", "layer_types must have an entry for each of num_hidden_layers")
        return self

    def rope(self, kind: Literal["full_attention", "sliding_attention"]) -> RopeParameters:
        theta = self.global_rope_theta if kind == "full_attention" else self.local_rope_theta
        rope: RopeParameters = getattr(self.rope_parameters, kind) or RopeParameters()
        return rope.filled(theta, 1.0, self.max_position_embeddings)


class DecoderConfig(HfConfig):
    num_key_value_heads: Heads | None = None
    head_dim: HeadDim | None = None
    rms_norm_eps: Epsilon = 1e-6
    layer_norm_eps: Epsilon = 1e-5
    """Cohere's."""
    attention_bias: bool | None = None
    qkv_bias: bool | None = None
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    use_qk_norm: bool = False
    use_bidirectional_attention: bool = False
    query_pre_attn_scalar: Positive | None = None
    attn_logit_softcapping: Positive | None = None
    final_logit_softcapping: Positive | None = None
    embedding_multiplier: Positive = 1.0
    attention_multiplier: Positive = 1.0
    residual_multiplier: Positive = 1.0
    logits_scaling: Positive = 1.0
    """Granite's; logits are divided by it."""
    logit_scale: Positive = 0.0625
    model_max_length: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Cohere's, the latter the context that Command R was trained for: `max_position_embeddings` says less."""

    sliding_window: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """0: there is none."""
    use_sliding_window: bool = False
    sliding_window_pattern: Annotated[int, Field(ge=1, le=1024)] = Field(
        6, validation_alias=AliasChoices("sliding_window_pattern", "_sliding_window_pattern")
    )
    max_window_layers: Annotated[int, Field(ge=0, le=1024)] | None = None
    layer_types: list[Literal["full_attention", "sliding_attention", "linear_attention"]] | None = Field(
        None, max_length=1024
    )
    no_rope_layers: list[Literal[0, 1]] | None = Field(None, max_length=1024)
    """SmolLM3's: 0 for each layer without a rotary embedding."""
    no_rope_layer_interval: Annotated[int, Field(ge=1, le=1024)] = 4

    rope_theta: float = Field(10_000.0, gt=1, le=1e15)
    rope_local_base_freq: float | None = Field(None, gt=1, le=1e15)
    partial_rotary_factor: float = Field(1.0, gt=0, le=1)
    original_max_position_embeddings: Length | None = None
    rope_parameters: RopeParameters = Field(
        RopeParameters(), validation_alias=AliasChoices("rope_parameters", "rope_scaling")
    )

    kv_lora_rank: Width | None = None
    q_lora_rank: Width | None = None
    qk_nope_head_dim: HeadDim | None = None
    qk_rope_head_dim: HeadDim | None = None
    v_head_dim: HeadDim | None = None
    rope_interleave: bool = True

    full_attention_interval: Annotated[int, Field(ge=1, le=1024)] = 4
    linear_num_key_heads: Heads | None = None
    linear_num_value_heads: Heads | None = None
    linear_key_head_dim: HeadDim | None = None
    linear_value_head_dim: HeadDim | None = None
    linear_conv_kernel_dim: Annotated[int, Field(ge=2, le=64)] = 4
    """Qwen3-Next's, from `full_attention_interval` on."""

    num_experts: Experts | None = Field(
        None, validation_alias=AliasChoices("num_experts", "num_local_experts", "n_routed_experts")
    )
    num_experts_per_tok: Experts | None = None
    moe_intermediate_size: Width | None = None
    shared_expert_intermediate_size: Annotated[int, Field(ge=0, le=2**20)] = 0
    norm_topk_prob: bool = False
    n_shared_experts: Annotated[int, Field(ge=0, le=1024)] = 0
    n_group: Experts = 1
    topk_group: Experts = 1
    topk_method: str = "greedy"
    routed_scaling_factor: Positive = 1.0
    first_k_dense_replace: Annotated[int, Field(ge=0, le=1024)] = 0
    moe_layer_freq: Annotated[int, Field(ge=1, le=1024)] = 1
    """DeepSeek's, from `n_shared_experts` on."""
    swiglu_limit: Positive = 7.0
    swiglu_alpha: Positive = 1.702
    """gpt-oss's."""
    decoder_sparse_step: Annotated[int, Field(ge=1, le=1024)] = 1
    mlp_only_layers: list[int] = Field([], max_length=1024)

    @model_validator(mode="before")
    @classmethod
    def _prefer_new_spelling(cls, data: dict[str, Any]) -> dict[str, Any]:
        """An empty `rope_scaling`, or an empty `rope_parameters` beside it, says nothing."""
        return {name: value for name, value in data.items() if not (name.startswith("rope_") and value == {})}

    @model_validator(mode="after")
    def _fields_agree(self) -> DecoderConfig:
        heads, kv_heads = self.num_attention_heads, self.num_kv_heads
        if self.head_dim is None:
            _check_division(self.hidden_size, "hidden_size", heads, "num_attention_heads")
            if self.resolved_head_dim % 2:
                raise PydanticCustomError("odd_heads", "hidden_size / num_attention_heads must be even")
        _check_division(heads, "num_attention_heads", kv_heads, "num_key_value_heads")
        if self.layer_types is not None and len(self.layer_types) != self.num_hidden_layers:
            raise PydanticCustomError("layer_types", "layer_types must have an entry for each of num_hidden_layers")
        if self.no_rope_layers is not None and len(self.no_rope_layers) < self.num_hidden_layers:
            raise PydanticCustomError("layers", "no_rope_layers must have an entry for each of num_hidden_layers")
        if (self.num_experts_per_tok or 0) > (self.num_experts or 4096):
            raise PydanticCustomError("experts", "num_experts_per_tok must not be more than num_experts")
        value_heads, key_heads = self.linear_num_value_heads or 1, self.linear_num_key_heads or 1
        _check_division(value_heads, "linear_num_value_heads", key_heads, "linear_num_key_heads")
        _check_division(self.num_experts or self.n_group, "num_experts", self.n_group, "n_group")
        if self.topk_group > self.n_group:
            raise PydanticCustomError("groups", "topk_group must not be more than n_group")
        return self

    @property
    def num_kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def resolved_head_dim(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def linear_layers(self) -> list[int]:
        """Layers without attention: those listed, or all but each `full_attention_interval`-th."""
        layers = range(self.num_hidden_layers)
        if self.layer_types is not None:
            return [layer for layer in layers if self.layer_types[layer] == "linear_attention"]
        return [layer for layer in layers if (layer + 1) % self.full_attention_interval]

    def unrotated_layers(self) -> list[int]:
        """Layers without a rotary embedding: those listed, or each `no_rope_layer_interval`-th."""
        layers, listed = range(self.num_hidden_layers), self.no_rope_layers
        if listed is not None:
            return [layer for layer in layers if not listed[layer]]
        return [layer for layer in layers if (layer + 1) % self.no_rope_layer_interval == 0]

    def windows(self, rule: str) -> list[int | None]:
        """The sliding window of each layer, None where a layer sees everything.

        Without `layer_types`, `rule` says which layers slide: `all` of them; `qwen`: those from `max_window_layers`
        on, and only if `use_sliding_window`; `listed`: none (the MoE families of Qwen, of which each version of
        transformers takes others); `unrotated`: those without a rotary embedding, and only if
        `use_sliding_window` (SmolLM3); `alternating`: the even ones (Gemma 2); `pattern`: all but each
        `sliding_window_pattern`-th.
        """
        count, size = self.num_hidden_layers, self.sliding_window
        layers = range(count)
        if not size or (rule in ("qwen", "listed", "unrotated") and not self.use_sliding_window):
            sliding: Collection[int] = ()
        elif self.layer_types is not None:
            sliding = [layer for layer in layers if self.layer_types[layer] == "sliding_attention"]
        elif rule == "listed":
            raise UnsupportedModelError(
                "config.json: use_sliding_window needs layer_types, which say where windows are"
            )
        elif rule == "alternating":
            sliding = layers[::2]
        elif rule == "pattern":
            sliding = [layer for layer in layers if (layer + 1) % self.sliding_window_pattern]
        elif rule == "unrotated":
            sliding = self.unrotated_layers()
        elif rule == "qwen":
            sliding = layers[count if self.max_window_layers is None else self.max_window_layers :]
        else:
            sliding = layers
        return [size if layer in sliding else None for layer in layers]

    def ropes(self) -> dict[str, RopeParameters]:
        """The rotary embedding of each layer type, with what the whole model says filled in.

        Layers that slide have their own, plain one where `rope_local_base_freq` says so.
        """
        full, local_theta = self.rope_parameters.full_attention or self.rope_parameters, self.rope_local_base_freq
        plain = full if local_theta is None else RopeParameters(rope_theta=local_theta)
        kinds = {"full_attention": full, "sliding_attention": self.rope_parameters.sliding_attention or plain}
        original = self.original_max_position_embeddings or self.max_position_embeddings
        return {
            kind: rope.filled(self.rope_theta, self.partial_rotary_factor, original) for kind, rope in kinds.items()
        }


def _check_division(whole: int, name: str, parts: int, parts_name: str) -> None:
    if whole % parts:
        message = "{name} ({whole}) must be a multiple of {parts_name} ({parts})"
        values = {"name": name, "whole": whole, "parts_name": parts_name, "parts": parts}
        raise PydanticCustomError("division", message, values)
