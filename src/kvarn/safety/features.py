"""A text as hashed n-grams, each with the place where it begins.

The hashing trick (Weinberger et al., 2009): an n-gram's number in the table of weights is a hash of it, so there is no
vocabulary. Two n-grams that meet share a weight; training takes that in.
"""

from __future__ import annotations

import string
import unicodedata
from zlib import crc32

import numpy as np
import numpy.typing as npt

BUCKETS = 1 << 15  # rows of the table of weights

_CHARACTER_NGRAMS = (3, 4, 5)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: spreads neighbours (Knuth, multiplicative hashing)
_SHIFT = np.uint64(64 - 15)
_BASE = np.uint64(0x100000001B3)
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff"))
_TO_SPACE = bytes.maketrans(string.punctuation.encode() + string.whitespace.encode(), b" " * 38)
_DELETED = b"'`"

Buckets = npt.NDArray[np.intp]
Places = npt.NDArray[np.intp]


def normalise(text: str) -> bytes:
    """UTF-8 of the text in compatibility form and without case, punctuation and invisible characters.

    Words stand between single spaces, with one before the first and one after the last.
    """
    folded = unicodedata.normalize("NFKC", text).translate(_INVISIBLE).casefold()
    words = folded.encode("utf-8", "replace").translate(_TO_SPACE, _DELETED).split()
    return b" " + b" ".join(words) + b" "


def ngrams(normalised: bytes) -> tuple[Buckets, Places]:
    """Buckets of all character n-grams, words and pairs of words, and the byte each begins at."""
    letters = np.frombuffer(normalised, np.uint8).astype(np.uint64)
    buckets: list[npt.NDArray[np.uint64]] = []
    places: list[Places] = []
    rolling = letters
    for length in range(2, max(_CHARACTER_NGRAMS) + 1):
        rolling = rolling[:-1] * _BASE + letters[length - 1 :] if len(rolling) else rolling
        if length in _CHARACTER_NGRAMS:
            buckets.append(((rolling + np.uint64(length)) * _MULTIPLIER) >> _SHIFT)
            places.append(np.arange(len(rolling)))
    words = normalised.split()
    if words:
        starts = np.cumsum([1, *(len(word) + 1 for word in words[:-1])])
        hashes = np.fromiter(map(crc32, words), np.uint64, len(words)) + np.uint64(1)
        buckets += [hashes * _MULTIPLIER >> _SHIFT, (hashes[:-1] * _BASE + hashes[1:]) * _MULTIPLIER >> _SHIFT]
        places += [starts, starts[:-1]]
    return np.concatenate(buckets).astype(np.intp), np.concatenate(places)
