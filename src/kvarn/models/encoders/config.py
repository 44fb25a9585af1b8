"""Encoders' config.json, and the files sentence-transformers puts beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field

from kvarn.specs.errors import CheckpointError, UnsupportedModelError
from kvarn.specs.families.hf_config import EncoderConfig, Length, activation_named
from kvarn.specs.families.rope import rope_spec
from kvarn.specs.spec import ClassifierSpec, EncoderLayerSpec, EncoderSpec, Pooling
from kvarn.text.architectures import CLASSIFIER
from kvarn.text.config_files import CheckpointFile
from kvarn.text.json_file import read_json, read_json_value, validate


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderNames:
    """Names of an encoder's tensors, without `.weight`; those of a layer below `layers` and its number."""

    prefixes: tuple[str, ...]
    """Possible prefixes of all names: none in a bare encoder, the family's name in one saved below a head."""
    words: str = "embeddings.word_embeddings"
    norm: str = "embeddings.LayerNorm"
    final_norm: str | None = None
    layers: str = "encoder.layer"
    qkv: tuple[str, ...] = ("attention.self.query", "attention.self.key", "attention.self.value")
    output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    mlp_norm: str = "output.LayerNorm"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierNames:
    """Names of a classifier's tensors, without `.weight`."""

    dense: str
    output: str
    norm: str | None = None
    below_encoder: bool = False
    """The encoder's prefix stands before `dense`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderFamily:
    names: EncoderNames
    classifier: ClassifierNames
    pair_types: bool = False
    positions_after_padding: bool = False
    """Positions begin after the padding token's id (RoBERTa)."""
    modern: bool = False
    """ModernBERT: rotary embeddings, windows, gated MLPs, norms before each half."""


_BERT = EncoderFamily(
    names=EncoderNames(prefixes=("", "bert.")),
    classifier=ClassifierNames(dense="pooler.dense", output="classifier", below_encoder=True),
    pair_types=True,
)
_ROBERTA = EncoderFamily(
    names=EncoderNames(prefixes=("", "roberta.")),
    classifier=ClassifierNames(dense="classifier.dense", output="classifier.out_proj"),
    positions_after_padding=True,
)
_MODERNBERT = EncoderFamily(
    names=EncoderNames(
        prefixes=("", "model."),
        words="embeddings.tok_embeddings",
        norm="embeddings.norm",
        final_norm="final_norm",
        layers="layers",
        qkv=("attn.Wqkv",),
        output="attn.Wo",
        attention_norm="attn_norm",
        up="mlp.Wi",
        down="mlp.Wo",
        mlp_norm="mlp_norm",
    ),
    classifier=ClassifierNames(dense="head.dense", output="classifier", norm="head.norm"),
    modern=True,
)

ENCODERS: Mapping[str, EncoderFamily] = MappingProxyType(
    {
        f"{name}{head}": family
        for name, family in {
            "Bert": _BERT,
            "Roberta": _ROBERTA,
            "XLMRoberta": _ROBERTA,
            "ModernBert": _MODERNBERT,
        }.items()
        for head in ("Model", "ForMaskedLM", CLASSIFIER)
    }
)
"""Encoders by the name in config.json's `architectures`."""

_MODULES = "modules.json"


def encoder_spec(
    architecture: str,
    path: Path,
    config: EncoderConfig,
    *,
    max_context_length: int | None = None,
) -> EncoderSpec:
    """The encoder in config.json, with pooling, normalisation and length limit of sentence-transformers' files.

    Without `modules.json` vectors are the mean of their tokens', scaled to length one.
    """
    family = ENCODERS[architecture]
    parts = _modern(config) if family.modern else _plain(family, config)
    trained = config.max_position_embeddings - parts.get("position_offset", 0)
    limits = [trained, _sentence_config(path).max_seq_length, max_context_length]  # the second: what it was tuned on
    if architecture.endswith(CLASSIFIER):
        parts |= _classifier(family, config)
    else:
        sentence = sentence_modules(path)
        parts |= {"pooling": sentence.pooling, "normalize": sentence.normalize}
    return EncoderSpec(
        architecture=architecture,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        max_context_length=min(limit for limit in limits if limit is not None),
        activation=config.activation(),
        **parts,
    )


def _classifier(family: EncoderFamily, config: EncoderConfig) -> dict[str, Any]:
    labels = 2 if config.id2label is None else len(config.id2label)
    if labels != 1:
        raise UnsupportedModelError(
            f"the classifier has {labels} labels: a cross-encoder, the only kind that is supported, has one"
        )
    if not family.modern:
        return {"pooling": "cls", "normalize": False, "classifier": ClassifierSpec(pair_types=family.pair_types)}
    head = ClassifierSpec(activation=activation_named(config.classifier_activation), bias=config.classifier_bias)
    return {"pooling": config.classifier_pooling, "normalize": False, "classifier": head}


def _plain(family: EncoderFamily, config: EncoderConfig) -> dict[str, Any]:
    """The fields of `EncoderSpec` that BERT and ModernBERT fill differently: BERT's."""
    if config.position_embedding_type != "absolute":
        raise UnsupportedModelError("only absolute position embeddings are supported in BERT and RoBERTa")
    if config.is_decoder:
        raise UnsupportedModelError("config.json: is_decoder: BERT and RoBERTa are supported as encoders only")
    positions = config.max_position_embeddings
    offset = config.pad_token_id + 1 if family.positions_after_padding else 0
    if positions <= offset:
        raise CheckpointError(
            f"config.json: max_position_embeddings is {positions}: RoBERTa's must be more than pad_token_id + 1"
        )
    return {
        "layers": (EncoderLayerSpec(),) * config.num_hidden_layers,
        "max_positions": positions,
        "position_offset": offset,
        "num_token_types": config.type_vocab_size,
        "norm_eps": config.layer_norm_eps,
    }


def _modern(config: EncoderConfig) -> dict[str, Any]:
    """The same of ModernBERT."""
    if config.rope_scaling:
        raise UnsupportedModelError("config.json: rope_scaling is not supported in ModernBERT: use rope_parameters")
    every, size, window = config.global_attn_every_n_layers, config.max_position_embeddings, config.local_attention
    kinds: list[Literal["full_attention", "sliding_attention"]] = config.layer_types or [
        "sliding_attention" if layer % every else "full_attention" for layer in range(config.num_hidden_layers)
    ]
    head_dim = config.hidden_size // config.num_attention_heads
    ropes = {kind: rope_spec(config.rope(kind), head_dim, size, size) for kind in set(kinds)}
    return {
        "layers": tuple(
            EncoderLayerSpec(rope=ropes[kind], window=None if kind == "full_attention" else window // 2 + 1)
            for kind in kinds
        ),
        "norm_eps": config.norm_eps,
        "pre_norm": True,
        "gated": True,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "norm_bias": config.norm_bias,
    }


class _SentenceConfig(CheckpointFile):
    max_seq_length: Length | None = None
    do_lower_case: bool = False
    modality_config: dict[str, Any] = Field({}, max_length=64)


class _Module(CheckpointFile):
    type: str
    path: str


class _Modules(CheckpointFile):
    modules: list[_Module] = Field(max_length=64)


@dataclass(frozen=True, slots=True)
class SentenceModules:
    """Pooling and normalisation, as sentence-transformers' files say."""

    pooling: Pooling = "mean"
    normalize: bool = True


def _sentence_config(path: Path) -> _SentenceConfig:
    file = path / "sentence_bert_config.json"
    return validate(_SentenceConfig, read_json(file), file)


def is_lowercase(path: Path) -> bool:
    """Whether sentence-transformers puts a text into lower case before its tokenizer sees it."""
    return _sentence_config(path).do_lower_case


def embeds_chats(path: Path) -> bool:
    """Whether sentence-transformers renders a text as a chat before this model embeds it."""
    return "message" in _sentence_config(path).modality_config


def has_sentence_modules(path: Path) -> bool:
    """Whether the checkpoint says that it embeds."""
    return (path / _MODULES).is_file()


def sentence_module(path: Path, kind: str) -> Path | None:
    found = _module_paths(path).get(kind)
    return None if found is None else path / found


def _module_paths(path: Path) -> dict[str, str]:
    file = path / _MODULES
    if not has_sentence_modules(path):
        return {}
    modules = validate(_Modules, {"modules": read_json_value(file)}, file).modules
    return {module.type.rsplit(".", 1)[-1]: module.path for module in modules}


def sentence_modules(path: Path) -> SentenceModules:
    """Read `modules.json`; the defaults where there is none."""
    if not has_sentence_modules(path):
        return SentenceModules()
    file, kinds = path / _MODULES, _module_paths(path)
    if unknown := sorted(kinds.keys() - {"Transformer", "Pooling", "Normalize"}):
        raise UnsupportedModelError(f"{file} asks for modules Kvarn does not have: {', '.join(unknown)}")
    return SentenceModules(_pooling(path / kinds["Pooling"]) if "Pooling" in kinds else "mean", "Normalize" in kinds)


_POOLINGS: Mapping[str, Pooling] = MappingProxyType(
    {"mean": "mean", "mean_tokens": "mean", "cls": "cls", "cls_token": "cls", "lasttoken": "last"}
)
"""By the names in `pooling_mode`, and by those of the flags (`pooling_mode_mean_tokens`) that stood in its place."""


def _pooling(path: Path) -> Pooling:
    config = read_json(path / "config.json", required=True)
    flags = {key.removeprefix("pooling_mode_"): value for key, value in config.items()}
    mode = config.get("pooling_mode", [key for key in flags.keys() - config.keys() if flags[key] is True])
    modes = mode if isinstance(mode, list) else [mode]
    if len(modes) == 1 and str(modes[0]) in _POOLINGS:
        return _POOLINGS[str(modes[0])]
    raise UnsupportedModelError(
        f"pooling {str(mode)[:80]} in {path / 'config.json'} is not supported; there are: mean, cls, lasttoken"
    )
