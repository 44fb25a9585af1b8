"""Encoders' config.json, and the files sentence-transformers puts beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pydantic import Field

from kvarn.models.errors import CheckpointError, UnsupportedModelError
from kvarn.models.hf_config import EncoderConfig, Length
from kvarn.models.spec import EncoderSpec
from kvarn.text.config_files import CheckpointFile
from kvarn.text.json_file import read_json, read_json_value, validate

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

ENCODER_MODEL_TYPES: Mapping[str, str] = MappingProxyType(
    {"bert": "BertModel", "roberta": "RobertaModel", "xlm-roberta": "XLMRobertaModel"}
)
"""The encoder of each `model_type`, for a config.json without `architectures`."""

PREFIXES = ("", "bert.", "roberta.")
"""What may stand before the names of an encoder's tensors."""


def encoder_spec(
    architecture: str,
    path: Path,
    config: EncoderConfig,
    *,
    max_context_length: int | None = None,
) -> EncoderSpec:
    """Of config.json, with pooling, normalisation and length limit from sentence-transformers' files where there are.

    Without `modules.json` vectors are the mean of their tokens', scaled to length one.
    """
    if config.position_embedding_type != "absolute":
        raise UnsupportedModelError("only absolute position embeddings are supported in encoders")
    positions = config.max_position_embeddings
    offset = config.pad_token_id + 1 if ENCODERS[architecture] == "roberta" else 0
    if positions <= offset:
        raise CheckpointError(
            f"config.json: max_position_embeddings is {positions}: RoBERTa's must be more than pad_token_id + 1"
        )
    limits = [positions - offset, _sentence_length(path), max_context_length]
    pooling, normalize = _modules(path)
    return EncoderSpec(
        architecture=architecture,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        max_context_length=min(limit for limit in limits if limit is not None),
        max_positions=positions,
        position_offset=offset,
        num_token_types=config.type_vocab_size,
        norm_eps=config.layer_norm_eps,
        activation=config.activation(),
        pooling=pooling,
        normalize=normalize,
    )


class _SentenceLength(CheckpointFile):
    max_seq_length: Length | None = None


class _Module(CheckpointFile):
    type: str
    path: str


class _Modules(CheckpointFile):
    modules: list[_Module] = Field(max_length=64)


def _sentence_length(path: Path) -> int | None:
    """Tokens of the longest text the model was tuned on."""
    file = path / "sentence_bert_config.json"
    return validate(_SentenceLength, read_json(file), file).max_seq_length


def _modules(path: Path) -> tuple[Literal["mean", "cls"], bool]:
    """Pooling, and whether vectors are normalised."""
    file = path / "modules.json"
    if not file.is_file():
        return "mean", True
    modules = validate(_Modules, {"modules": read_json_value(file)}, file).modules
    kinds = {module.type.rsplit(".", 1)[-1]: module.path for module in modules}
    if unknown := sorted(kinds.keys() - {"Transformer", "Pooling", "Normalize"}):
        raise UnsupportedModelError(f"{file} asks for modules Kvarn does not have: {', '.join(unknown)}")
    return _pooling(path / kinds["Pooling"]) if "Pooling" in kinds else "mean", "Normalize" in kinds


def _pooling(path: Path) -> Literal["mean", "cls"]:
    config = read_json(path / "config.json", required=True)
    modes = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    if modes == ["pooling_mode_mean_tokens"]:
        return "mean"
    if modes == ["pooling_mode_cls_token"]:
        return "cls"
    raise UnsupportedModelError(f"pooling {modes} in {path / 'config.json'} is not supported; mean and cls are")
