"""A small tokenizer of bytes and a few merged tokens, as tokenizer.json holds it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

MERGED = (
    '{"',
    '":',
    '"}',
    '",',
    " ",
    ' "',
    "name",
    '"name',
    "true",
    "false",
    "null",
    "aa",
    "ab",
    "ba",
    "12",
    "10",
    "-1",
)
PADDED = 320
"""Width of logits: more than `small_tokenizer(MERGED)` has tokens."""
END = 256
"""The end token of `small_tokenizer`; the special token behind it marks something."""
MARK = 257


def byte_characters() -> dict[int, str]:
    """The character by which byte-level tokenizers show each byte (GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}


def small_tokenizer(merged: Sequence[str] = (), special: Sequence[str] = ("<|end|>", "<|mark|>")) -> str:
    """All bytes (tokens 0 to 255), special tokens (from 256 on), then tokens for these texts."""
    shown = byte_characters()
    vocabulary = {shown[byte]: byte for byte in range(256)}
    added = [
        {"id": 256 + place, "content": name, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for place, name in enumerate(special)
    ]
    vocabulary |= {name: 256 + place for place, name in enumerate(special)}
    merges: list[list[str]] = []
    for text in merged:
        pieces = [shown[byte] for byte in text.encode()]
        whole = pieces[0]
        for piece in pieces[1:]:
            if whole + piece not in vocabulary:
                merges.append([whole, piece])
                vocabulary[whole + piece] = len(vocabulary)
            whole += piece
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": merges,
    }
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": split,
            "post_processor": None,
            "decoder": split,
            "model": model,
        }
    )


def allowed(packed: Any, vocabulary: int = PADDED) -> set[int]:
    """The tokens of a packed mask."""
    bits = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=vocabulary, bitorder="little")
    return set(np.flatnonzero(bits).tolist())
