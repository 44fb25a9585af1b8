"""Encoders' config.json, and the files sentence-transformers puts beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from kvarn.models.checkpoint import read_json
from kvarn.models.errors import CheckpointError, UnsupportedModelError
from kvarn.models.hf_config import HfConfig
from kvarn.models.spec import EncoderSpec

ENCODERS: Mapping[str, Literal["bert", "roberta"]] = MappingProxyType(
    {
        "BertModel": "bert",
        "BertForMaskedLM": "bert",
        "RobertaModel": "roberta",
        "RobertaForMaskedLM": "roberta",
        "XLMRobertaModel": "roberta",
        "XLMRobertaForMaskedLM": "roberta",
    }
)
"""Encoders by the name in config.json's `architectures`. RoBERTa's positions begin after the padding token's id."""

PREFIXES = ("", "bert.", "roberta.")
"""What may stand before the names of an encoder's tensors."""


def encoder_spec(
    architecture: str,
    path: Path,
    raw: Mapping[str, Any],
    *,
    max_context_length: int | None = None,
    num_parameters: int = 0,
) -> EncoderSpec:
    """Read config.json, and pooling, normalisation and length limit from sentence-transformers' files where there are.

    Without `modules.json` vectors are the mean of their tokens', scaled to length one.
    """
    config = HfConfig(raw)
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise UnsupportedModelError("only absolute position embeddings are supported in encoders")
    positions = config.integer("max_position_embeddings")
    offset = config.integer("pad_token_id", 1) + 1 if ENCODERS[architecture] == "roberta" else 0
    limits = [positions - offset, _sentence_length(path), max_context_length]
    pooling, normalize = _modules(path)
    return EncoderSpec(
        architecture=architecture,
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("intermediate_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=config.integer("num_attention_heads"),
        max_context_length=min(limit for limit in limits if limit is not None),
        max_positions=positions,
        position_offset=offset,
        num_token_types=config.integer("type_vocab_size", 2),
        norm_eps=config.number("layer_norm_eps", 1e-12),
        activation=config.activation(),
        pooling=pooling,
        normalize=normalize,
        num_parameters=num_parameters,
    )


def _sentence_length(path: Path) -> int | None:
    """Tokens of the longest text the model was tuned on."""
    file = path / "sentence_bert_config.json"
    return HfConfig(read_json(file)).integer("max_seq_length") if file.is_file() else None


def _modules(path: Path) -> tuple[Literal["mean", "cls"], bool]:
    """Pooling, and whether vectors are normalised."""
    file = path / "modules.json"
    if not file.is_file():
        return "mean", True
    try:
        modules = json.loads(file.read_text(encoding="utf-8"))
        kinds = {str(module["type"]).rsplit(".", 1)[-1]: str(module["path"]) for module in modules}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"cannot read {file}: {error}") from error
    if unknown := sorted(kinds.keys() - {"Transformer", "Pooling", "Normalize"}):
        raise UnsupportedModelError(f"{file} asks for modules Kvarn does not have: {', '.join(unknown)}")
    return _pooling(path / kinds["Pooling"]) if "Pooling" in kinds else "mean", "Normalize" in kinds


def _pooling(path: Path) -> Literal["mean", "cls"]:
    config = read_json(path / "config.json")
    modes = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    if modes == ["pooling_mode_mean_tokens"]:
        return "mean"
    if modes == ["pooling_mode_cls_token"]:
        return "cls"
    raise UnsupportedModelError(f"pooling {modes} in {path / 'config.json'} is not supported; mean and cls are")
