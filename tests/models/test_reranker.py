"""Decoders that rank: the logit of each pair is how far transformers' logit of yes is above that of no."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kvarn.models import CausalEncoder, Decoder, ModelError, UnsupportedModelError, load_model
from kvarn.specs.errors import CheckpointError
from tiny_checkpoints import make_decoder

YES, NO = 17, 90
TEXTS = [[5, 6, 7], [8] * 40, [9], list(range(20, 41))]


def encode(model: Any, texts: list[list[int]]) -> torch.Tensor:
    starts = torch.tensor([0, *map(len, texts)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    found: torch.Tensor = model.encode(torch.tensor([token for text in texts for token in text]), starts)
    return found


def last_logits(oracle: Any) -> torch.Tensor:
    with torch.no_grad():
        return torch.stack([oracle(torch.tensor([text])).logits[0, -1] for text in TEXTS])


def write_tokenizer(path: Path, **vocabulary: int) -> None:
    (path / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": vocabulary}}))


def write_modules(path: Path, **config: int | None) -> None:
    modules = {"": "base.modules.transformer.Transformer", "1_LogitScore": "cross_encoder.modules.LogitScore"}
    listed = [{"path": where, "type": f"sentence_transformers.{name}"} for where, name in modules.items()]
    (path / "modules.json").write_text(json.dumps(listed))
    (path / "1_LogitScore").mkdir()
    (path / "1_LogitScore" / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("tied", [True, False])
def test_the_first_published_kind_finds_its_answers_in_the_tokenizer(tmp_path: Path, tied: bool) -> None:
    oracle = make_decoder("qwen3", tmp_path, tie_word_embeddings=tied)
    write_tokenizer(tmp_path, yes=YES, no=NO)
    assert isinstance(load_model(tmp_path, dtype="float32"), Decoder)  # nothing says that it ranks
    model = load_model(tmp_path, dtype="float32", kind="score")
    assert isinstance(model, CausalEncoder)
    logits = last_logits(oracle)
    torch.testing.assert_close(encode(model, TEXTS), (logits[:, YES] - logits[:, NO])[:, None], atol=1e-4, rtol=1e-4)
    alone = torch.cat([encode(model, [text]) for text in TEXTS])
    assert model.kernels.packer.layout is None or torch.equal(encode(model, TEXTS), alone)


def test_sentence_transformers_files_say_that_it_ranks(tmp_path: Path) -> None:
    oracle = make_decoder("qwen3", tmp_path)
    write_tokenizer(tmp_path, yes=YES, no=NO)
    write_modules(tmp_path, true_token_id=YES, false_token_id=NO)
    logits = last_logits(oracle)
    found = encode(load_model(tmp_path, dtype="float32"), TEXTS)
    torch.testing.assert_close(found, (logits[:, YES] - logits[:, NO])[:, None], atol=1e-4, rtol=1e-4)
    assert isinstance(load_model(tmp_path, kind="generate"), Decoder)


@pytest.mark.parametrize("answers", [{"true_token_id": YES, "false_token_id": None}, {"true_token_id": 3}])
def test_one_that_is_asked_for_other_tokens_is_refused(answers: dict[str, int | None], tmp_path: Path) -> None:
    """zerank, say: a template of its own comes with them."""
    make_decoder("qwen3", tmp_path)
    write_tokenizer(tmp_path, yes=YES, no=NO)
    write_modules(tmp_path, **answers)
    with pytest.raises(UnsupportedModelError, match="other tokens than Qwen3-Reranker's yes and no, 17 and 90"):
        load_model(tmp_path)


def test_a_classifier_of_one_label_ranks_where_kind_is_score(tmp_path: Path) -> None:
    import transformers

    config = make_decoder("qwen3", tmp_path / "decoder").config
    config.num_labels = 1
    oracle = transformers.Qwen3ForSequenceClassification(config).eval()
    oracle.save_pretrained(tmp_path / "classifier")
    with torch.no_grad():
        want = torch.cat([oracle(torch.tensor([text])).logits for text in TEXTS])
    found = encode(load_model(tmp_path / "classifier", dtype="float32", kind="score"), TEXTS)
    torch.testing.assert_close(found, want, atol=1e-4, rtol=1e-4)
    with pytest.raises(UnsupportedModelError, match="set kind to score"):  # it might judge answers, say
        load_model(tmp_path / "classifier")


def test_weights_in_bfloat16_give_nearly_the_same_logits(tmp_path: Path) -> None:
    make_decoder("qwen3", tmp_path)
    write_tokenizer(tmp_path, yes=YES, no=NO)
    exact, rounded = (encode(load_model(tmp_path, dtype=t, kind="score"), TEXTS) for t in ("float32", "bfloat16"))
    torch.testing.assert_close(rounded, exact, atol=0.1, rtol=0.05)


def test_models_that_cannot_rank_are_refused(tmp_path: Path) -> None:
    make_decoder("llama", tmp_path / "llama")
    with pytest.raises(UnsupportedModelError, match="over LlamaForCausalLM is not supported: of decoders only Qwen3"):
        load_model(tmp_path / "llama", kind="score")
    make_decoder("qwen3", tmp_path / "qwen3")
    write_tokenizer(tmp_path / "qwen3", no=NO)
    with pytest.raises((ModelError, CheckpointError), match="no token 'yes'"):
        load_model(tmp_path / "qwen3", kind="score")
    write_tokenizer(tmp_path / "qwen3", yes=YES, no=199)
    with pytest.raises((ModelError, CheckpointError), match="token 199 is not one of"):
        load_model(tmp_path / "qwen3", kind="score")
