"""kvarn-demo-rerank: what comes with the package loads as it is, and tells an answer from what is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import kvarn
from kvarn.models import load_model
from kvarn.text.tokenizer import Tokenizer

PATH = Path(kvarn.__file__).parent / "assets" / "kvarn-demo-rerank"


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model(PATH, dtype="float32")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(PATH)


def scores(model: Any, tokenizer: Tokenizer, query: str, texts: list[str]) -> list[float]:
    rows = [tokenizer.encode_pair(query, text) for text in texts]
    starts = torch.tensor([0, *map(len, rows)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    found: list[float] = model.encode(torch.tensor([token for row in rows for token in row]), starts)[:, 0].tolist()
    return found


@pytest.mark.parametrize(
    ("query", "answer", "other"),
    [
        ("how much is a ticket", "The price of a ticket is three crowns.", "The price of a coffee is three crowns."),
        ("close a socket", "Close the socket. Later operations on it fail.", "Open a file and return a stream."),
        ("delete a user", "To remove a person, call this with the user's id.", "To list all models, call this."),
        ("largest number in an array", "Return the maximum of an array.", "Return the mean of a list."),
    ],
)
def test_a_passage_that_answers_is_above_one_that_does_not(query, answer, other, model, tokenizer) -> None:
    best, worst = scores(model, tokenizer, query, [answer, other])
    assert best > worst


def test_it_computes_what_transformers_does(model, tokenizer) -> None:
    import transformers
    from safetensors.torch import load_file

    config = transformers.AutoConfig.from_pretrained(PATH)
    del config.quantization_config
    oracle = transformers.BertForSequenceClassification(config)
    stored = load_file(PATH / "model.safetensors")
    plain = {
        name: tensor.float() * (stored[f"{name}_scale"].float() if f"{name}_scale" in stored else 1)
        for name, tensor in stored.items()
        if not name.endswith("_scale")
    }
    oracle.load_state_dict(plain, strict=False)
    oracle.eval()
    query, text = "price of a ticket", "The red cat reads a book about prices of tickets in the city of trains."
    ids = torch.tensor([tokenizer.encode_pair(query, text)])
    types = torch.zeros_like(ids)
    types[0, int((ids[0] == ids[0, -1]).nonzero()[0]) + 1 :] = 1
    with torch.no_grad():
        expected = float(oracle(input_ids=ids, token_type_ids=types).logits)
    (found,) = scores(model, tokenizer, query, [text])
    assert found == pytest.approx(expected, abs=0.25)  # activations in 8 bits


def test_it_is_small_and_says_where_it_comes_from() -> None:
    assert sum(path.stat().st_size for path in PATH.iterdir()) < 8_000_000
    card = (PATH / "README.md").read_text(encoding="utf-8")
    assert "Apache-2.0" in card and "all-MiniLM-L6-v2" in card
