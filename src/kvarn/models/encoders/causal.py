"""Decoders that embed (Qwen3-Embedding), or rank pairs of texts (Qwen3-Reranker).

A reranker is asked whether a document meets a query, and answers yes or no. The score's logit is how far the logit of
yes is above that of no behind the pair's last token: a product with one row, the difference of two rows of the output
head.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from kvarn.kernels.batch import whole_texts
from kvarn.kernels.linear import Linear
from kvarn.kernels.weights import Weight
from kvarn.models.encoders.base import TextEncoder
from kvarn.models.encoders.config import SentenceModules, sentence_module
from kvarn.models.layer import load_norm, scaled_embedding
from kvarn.models.loading.weights import WeightLoader
from kvarn.models.stack import LayerStack
from kvarn.specs.errors import CheckpointError, UnsupportedModelError
from kvarn.specs.place import Shard
from kvarn.specs.spec import DecoderSpec
from kvarn.text.architectures import DECODERS
from kvarn.text.config_files import CheckpointFile
from kvarn.text.json_file import read_json, validate


class CausalEncoder(TextEncoder):
    """A decoder's layers; each text is a prompt of its own.

    Args:
        spec: The decoder's.
        sentence: Pooling and normalisation.
        loader: Of its weights.
        head: From a pair's state to its logit; None: the state is the answer.
    """

    def __init__(
        self, spec: DecoderSpec, sentence: SentenceModules, loader: WeightLoader, head: Linear | None = None
    ) -> None:
        super().__init__(spec, loader, sentence.pooling, sentence.normalize, head)
        self.spec = spec
        self._words = loader.embedding("model.embed_tokens", Shard.whole(spec.vocab_size), spec.hidden_size)
        # GPUs attend over no float32 numbers.
        self._stack = LayerStack(spec, loader, "bfloat16" if self.kernels.device.is_asynchronous else "float32")
        self._norm = load_norm("model.norm", spec, loader)

    def _states(self, token_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        batch, num_blocks = whole_texts(lengths)
        cache = self._stack.new_scratch_cache(num_blocks)
        hidden = F.embedding(token_ids, self._words).to(self._activation_dtype)
        hidden = scaled_embedding(hidden, self.spec, self.dtype)
        return self._stack.run(hidden, batch, self._stack.steps(batch, cache), 0, self.spec.num_layers)

    def _normed(self, states: torch.Tensor) -> torch.Tensor:
        return self.kernels.operations.norm(states, self._norm).float()


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
        UnsupportedModelError: The words in which it is asked are not known.
    """
    asked = kind == "score" or (kind == "auto" and sentence_module(path, "LogitScore") is not None)
    if (asked or is_classifier) and DECODERS[spec.architecture] != "qwen3":
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
