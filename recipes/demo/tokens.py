"""The tokenizer: byte-level BPE of 4,096 entries in which every digit stands alone."""

from __future__ import annotations

import itertools
import json
import unicodedata
from pathlib import Path

from recipes.demo.chat import TEMPLATE_PATH, Segment
from recipes.demo.corpus import training_documents
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY_SIZE = 4096
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<tool_call>", "</tool_call>")
# Words with one leading space, single digits, runs of punctuation, then white space.
PIECES = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def train_tokenizer(seed: int, documents: int) -> Tokenizer:
    """Learn the merges from generated text; the full byte alphabet is always in the vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    markers = len(MARKERS)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - markers,
        special_tokens=list(SPECIAL),
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    stream = itertools.islice(training_documents(seed), documents)
    tokenizer.train_from_iterator(("".join(piece.text for piece in document) for document in stream), trainer)
    # Added last and not special: they must survive `skip_special_tokens`, for the tool-call parser reads them.
    tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in MARKERS])
    return tokenizer


def encode_document(tokenizer: Tokenizer, document: list[Segment]) -> tuple[list[int], list[bool]]:
    """Token ids of a document and, for each, whether the model is trained to produce it."""
    ids: list[int] = []
    learnt: list[bool] = []
    for piece in document:
        piece_ids = tokenizer.encode(piece.text, add_special_tokens=False).ids
        ids += piece_ids
        learnt += [piece.learnt] * len(piece_ids)
    return ids, learnt


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and the small files Hugging Face reads beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    special = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    decoder = {
        str(tokenizer.token_to_id(token)): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token in SPECIAL,
        }
        for token in (*SPECIAL, *MARKERS)
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": None,
        **special,
        "additional_special_tokens": ["<|im_start|>"],
        "added_tokens_decoder": decoder,
        "chat_template": TEMPLATE_PATH.read_text(encoding="utf-8"),
    }
    write_json(folder / "tokenizer_config.json", config)
    write_json(folder / "special_tokens_map.json", {**special, "additional_special_tokens": ["<|im_start|>"]})
    (folder / "chat_template.jinja").write_text(TEMPLATE_PATH.read_text(encoding="utf-8"), encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Write a JSON file with a stable layout."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def is_single_digit_vocabulary(tokenizer: Tokenizer) -> bool:
    """Whether no vocabulary entry joins a digit with anything else."""
    return all(
        len(entry) == 1 or not any(unicodedata.category(c) == "Nd" for c in entry) for entry in tokenizer.get_vocab()
    )
