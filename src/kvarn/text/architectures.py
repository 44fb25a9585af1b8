"""The architectures that can be served, by the names that config.json gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

CLASSIFIER = "ForSequenceClassification"
"""End of the name of a model with a classifier's head."""

DECODERS: Mapping[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Phi3ForCausalLM": "phi3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "GraniteForCausalLM": "granite",
    "SmolLM3ForCausalLM": "smollm3",
    "GlmForCausalLM": "glm",
    "Glm4ForCausalLM": "glm4",
    "CohereForCausalLM": "cohere",
    "Cohere2ForCausalLM": "cohere2",
    "Olmo2ForCausalLM": "olmo2",
    "GptOssForCausalLM": "gpt_oss",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "Glm4MoeForCausalLM": "glm4_moe",
    "MixtralForCausalLM": "mixtral",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen3NextForCausalLM": "qwen3_next",
}

ENCODERS: Mapping[str, str] = {
    "BertModel": "bert",
    "RobertaModel": "roberta",
    "XLMRobertaModel": "xlm-roberta",
    "ModernBertModel": "modernbert",
}
"""The `model_type` of each encoder; their names end in `ForMaskedLM` and `ForSequenceClassification`, too."""

HEADS = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
"""EAGLE-3 heads, which guess the tokens of another model."""


def find_architecture(architectures: Sequence[str], model_type: str) -> str | None:
    """The first known one that config.json names, or where it names none, that of its `model_type`; None: there is
    none. A decoder that was saved without its head, by a model that embeds, or with another one has its whole name."""
    by_type = {kind: name for known in (DECODERS, ENCODERS) for name, kind in known.items()}
    for name in architectures or filter(None, [by_type.get(model_type)]):
        bare = name.removesuffix("Model").removesuffix(CLASSIFIER)
        if name in DECODERS or f"{bare.removesuffix('ForMaskedLM')}Model" in ENCODERS:
            return name
        if f"{bare}ForCausalLM" in DECODERS:
            return f"{bare}ForCausalLM"
    return None


def describe_unsupported(where: str, architectures: Sequence[str], model_type: str) -> str:
    """Error message for an unknown architecture. `where`: the file that names it."""
    what = f"architecture {architectures[0][:80]!r}" if architectures else f"model_type {model_type[:80]!r}"
    decoders = ", ".join(name.removesuffix("ForCausalLM") for name in DECODERS)
    encoders = ", ".join(name.removesuffix("Model") for name in ENCODERS)
    return (
        f"{what} in {where} is not supported; known ones: {decoders} (with ForCausalLM), "
        f"{encoders} (with Model, ForMaskedLM or ForSequenceClassification)"
    )
