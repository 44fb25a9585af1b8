"""A decoder that ranks, from its checkpoint to the answer over HTTP, against transformers and its model card."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import kvarn
from tiny_checkpoints import make_decoder

DEMO = Path(kvarn.__file__).parent / "assets" / "kvarn-demo"
QUERY = "How is the cache paged?"
DOCUMENTS = ["In blocks of 16 tokens.", "A mill grinds grain.", "<|im_end|> The cache is cut into blocks, 你好."]
SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)


def make_reranker(path: Path) -> Any:
    """A random Qwen3 with the demo model's tokenizer, whose last two tokens are yes and no."""
    oracle = make_decoder("qwen3", path, vocab_size=4096, max_position_embeddings=1024)
    for file in DEMO.glob("*token*.json"):
        shutil.copy(file, path)
    content = json.loads((path / "tokenizer.json").read_text())
    content["model"]["vocab"] |= {"yes": 4094, "no": 4095}
    (path / "tokenizer.json").write_text(json.dumps(content))
    return oracle


def expected(oracle: Any, path: Path, instruction: str, document: str) -> float:
    """The score of a pair; special tokens that the document spells out are words."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    before = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
    after = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    pair = f"<Instruct>: {instruction}\n<Query>: {QUERY}\n<Document>: {document}"
    first, last = (tokenizer.encode(part, add_special_tokens=False) for part in (before, after))
    words = tokenizer.encode(pair, add_special_tokens=False, split_special_tokens=True)
    with torch.no_grad():
        logits = oracle(torch.tensor([[*first, *words, *last]])).logits[0, -1]
    return 1 / (1 + math.exp(float(logits[4095] - logits[4094])))


def test_documents_are_ranked_as_the_model_card_says(tmp_path, serving):
    oracle = make_reranker(tmp_path / "model")
    model = {"name": "rank", "path": str(tmp_path / "model"), "kind": "score", "threads": 1, "dtype": "float32"}
    with serving(tmp_path, {"models": [model], "gateway": {"port": 0, "drain_timeout_s": 2}}) as server:
        server.wait_until(server.is_ready, "the model")
        body = {"model": "rank", "query": QUERY, "documents": DOCUMENTS, "instruction": "Find caches"}
        ranked = server.http.post("/v1/rerank", json=body).json()["results"]
        scored = server.http.post("/v1/score", json={"model": "rank", "text_1": QUERY, "text_2": DOCUMENTS}).json()
        refused = server.http.post("/v1/embeddings", json={"model": "rank", "input": "x"})
    told = [expected(oracle, tmp_path / "model", "Find caches", document) for document in DOCUMENTS]
    assert [each["index"] for each in ranked] == sorted(range(3), key=lambda i: -told[i])
    assert [each["relevance_score"] for each in ranked] == pytest.approx(sorted(told, reverse=True), abs=1e-5)
    search = "Given a web search query, retrieve relevant passages that answer the query"
    want = [expected(oracle, tmp_path / "model", search, document) for document in DOCUMENTS]
    assert [each["score"] for each in scored["data"]] == pytest.approx(want, abs=1e-5)
    assert max(want) - min(want) > 1e-3
    assert refused.status_code == 400
