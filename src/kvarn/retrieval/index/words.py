"""Words of texts, as searches compare them: the same on every database.

A word is a run of letters and digits, in lower case and without the accents of Latin, Greek and Cyrillic letters; the
signs that are part of letters in Arabic, Hebrew and India's scripts stay. Where a script puts no spaces between words
(Chinese, Japanese, Thai, Lao, Khmer, Burmese; Korean too, whose endings cling to words) each two neighbouring letters
are a word. There is no stemming, which suits one language at a time. BM25 gives words that stand everywhere next to no
weight, but a small store does not know them: so those of English do not count in a query that has others.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable

import numpy as np
import xxhash

from kvarn.retrieval.index.arrays import Array

WORDS_VERSION = 1
"""Changes with anything that makes other words of a text: chunks are then indexed again."""
_ACCENTS = re.compile("[\u0300-\u036f]")
_SIGNS = "\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0900-\u0963\u0966-\u0dff"
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
_UNSPACED += "\U00020000-\U0003ffff"
_WORD = re.compile(f"(?P<unspaced>[{_UNSPACED}]+)|(?:(?![{_UNSPACED}])[^\\W_]|[{_SIGNS}])+")
_ASCII_WORD = re.compile("[a-z0-9]+")
_FUNCTION_WORDS = (
    "a about after all also am an and any are as at be been but by can could did do does for from had has have how i "
    "if in into is it its me my no not of on or our should so some such than that the their them then there these "
    "they this those to was we were what when where which who whom why will with would you your"
)
STOP_WORDS = frozenset(_FUNCTION_WORDS.split())
"""Words that tell what a sentence is, and not what it is about."""
_MAX_COUNT = (1 << 16) - 1
_HASH_BYTES, _COUNT_BYTES = 8, 2


def words(text: str) -> list[str]:
    """The words of a text, in order."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    plain = unicodedata.normalize("NFC", _ACCENTS.sub("", decomposed))
    found: list[str] = []
    for match in _WORD.finditer(plain):
        word = match[0]
        if match["unspaced"] is None or len(word) == 1:
            found.append(word)
        else:
            found.extend(word[at : at + 2] for at in range(len(word) - 1))
    return found


def word_hash(word: str) -> int:
    """64 bits that stand for a word: two words of one language share them practically never."""
    return xxhash.xxh3_64_intdigest(word.encode("utf-8", "surrogatepass"))


def pack_words(text: str, hash_of: Callable[[str], int] = word_hash) -> bytes:
    """A text's words for `unpack_words`: hashes in ascending order, then how often each stands there. `hash_of` may
    remember what `word_hash` gave."""
    counts = Counter(words(text))
    hashes = np.fromiter(map(hash_of, counts), dtype="<u8", count=len(counts))
    numbers = np.minimum(np.fromiter(counts.values(), dtype=np.int64, count=len(counts)), _MAX_COUNT)
    order = np.argsort(hashes)
    return hashes[order].tobytes() + numbers[order].astype("<u2").tobytes()


def unpack_words(packed: bytes) -> tuple[Array, Array]:
    """Hashes (uint64) and counts (uint16) of packed words."""
    count = len(packed) // (_HASH_BYTES + _COUNT_BYTES)
    return np.frombuffer(packed, "<u8", count), np.frombuffer(packed, "<u2", count, offset=_HASH_BYTES * count)


def query_hashes(text: str) -> Array:
    """Hashes of a query's words, each once, in ascending order; without stop words where it has others."""
    found = set(words(text))
    return np.array(sorted(map(word_hash, found - STOP_WORDS or found)), dtype=np.uint64)
