"""Decoders that rank (Qwen3-Reranker): asked whether a document meets a query, they answer yes or no. The score's logit
is how far the logit of yes is above that of no behind the pair's last token: a product with one row, the difference of
two rows of the output head."""

from __future__ import annotations

from pathlib import Path

import torch

from kvarn.kernels.linear import Linear
from kvarn.kernels.weights import Weight
from kvarn.models.encoders.config import sentence_module
from kvarn.models.errors import CheckpointError, UnsupportedModelError
from kvarn.models.families.table import FAMILIES
from kvarn.models.loading.weights import WeightLoader
from kvarn.models.parallel.tensor import Shard
from kvarn.models.spec import DecoderSpec
from kvarn.text.config_files import CheckpointFile
from kvarn.text.json_file import read_json, validate

CLASSIFIER_HEAD = "score.weight"
"""The row in a checkpoint that was saved as a classifier."""


class _LogitScore(CheckpointFile):
    """`LogitScore` of sentence-transformers."""

    true_token_id: int
    false_token_id: int | None = None


class _Vocabulary(CheckpointFile):
    vocab: dict[str, int]


class _TokenizerFile(CheckpointFile):
    model: _Vocabulary


def is_reranker(spec: DecoderSpec, path: Path, kind: str, *, is_classifier: bool) -> bool:
    """Whether the decoder in a directory is loaded to rank: sentence-transformers' files or `kind` say so.

    Raises:
        UnsupportedModelError: Nobody knows in which words it is asked.
    """
    asked = kind == "score" or (kind == "auto" and sentence_module(path, "LogitScore") is not None)
    if (asked or is_classifier) and FAMILIES[spec.architecture].model_type != "qwen3":
        raise UnsupportedModelError(
            f"{path}: a reranker or classifier over {spec.architecture} is not supported: of decoders only Qwen3 ranks "
            "(Qwen3-Reranker)"
        )
    if is_classifier and not asked:
        raise UnsupportedModelError(
            f"{path} is a classifier: if it is Qwen3-Reranker saved as one, set kind to score; others are not supported"
        )
    return asked


def load_score_head(spec: DecoderSpec, path: Path, loader: WeightLoader) -> Linear:
    """The product from a pair's state [S, hidden] to its logit [S, 1], of the reranker in a directory.

    Raises:
        UnsupportedModelError: It is asked for something else than yes or no.
        CheckpointError: It does not say what yes and no are.
    """
    if CLASSIFIER_HEAD in loader:
        row = loader.plain(CLASSIFIER_HEAD, (1, spec.hidden_size))
    else:
        yes, no = (_output_row(token, spec, path, loader) for token in _answers(path))
        row = yes - no
    return loader.kernels.packer.pack_linear(Weight(row.to(loader.device, loader.dtype)))


def _output_row(token: int, spec: DecoderSpec, path: Path, loader: WeightLoader) -> torch.Tensor:
    """[1, hidden] float32: what makes a token's logit."""
    if not 0 <= token < spec.vocab_size:
        raise CheckpointError(f"{path}: token {token} is not one of the model's {spec.vocab_size}")
    name = "model.embed_tokens" if spec.tied_embeddings else "lm_head"
    return loader.embedding(name, Shard(spec.vocab_size, range(token, token + 1)), spec.hidden_size).float()


def _answers(path: Path) -> tuple[int, int]:
    """Token ids of yes and of no."""
    file = path / "tokenizer.json"
    vocabulary = validate(_TokenizerFile, read_json(file, required=True), file).model.vocab
    if missing := [word for word in ("yes", "no") if word not in vocabulary]:
        raise CheckpointError(f"{file} has no token {missing[0]!r}: the model is no reranker of Qwen3's kind")
    answers = vocabulary["yes"], vocabulary["no"]
    module = sentence_module(path, "LogitScore")
    if module is not None:
        file = module / "config.json"
        asked = validate(_LogitScore, read_json(file, required=True), file)
        if (asked.true_token_id, asked.false_token_id) != answers:
            raise UnsupportedModelError(
                f"{file} asks for other tokens than Qwen3-Reranker's yes and no, {answers[0]} and {answers[1]}: the "
                "words in which this model is asked are not known"
            )
    return answers
