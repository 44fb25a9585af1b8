"""Counts of tokens, by words: a tokenizer takes its time for each, and texts repeat them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvarn.text.tokenizer import Tokenizer

_WORD = re.compile(r"(?<=\S)(?= \S)")
"""Ends of words: the next one begins with its one space, as the parts do into which tokenizers divide texts."""
_OVER_WORDS = re.compile("[^\\s▁Ġĉ-č][▁Ġ ]")
"""A token that goes on behind a word's end. Vocabularies spell a space as ▁ or Ġ, and line ends as ĉ to č."""
_PROBE = "It's 12 345, (a) b-c; e.g. x1 é 漢字 漢 -- ok\n no  d"
_REMEMBERED, _LONGEST_WORD = 1 << 16, 64


class TokenCounts:
    """Tokens of texts, without special ones: as many as a tokenizer makes. Words are counted once and remembered;
    where a tokenizer's words depend on each other, texts are counted whole. Threads may share it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._of_word = lru_cache(_REMEMBERED)(self._encoded)
        markers = " ".join(tokenizer.markers)
        self.by_words = _OVER_WORDS.search("\n".join(tokenizer.vocabulary())) is None and all(
            self._summed(probe) == self._encoded(probe) for probe in (_PROBE, f"a {markers} b")
        )
        """Whether its words do not depend on each other."""

    def __call__(self, text: str) -> int:
        """Raises TokenizerError for lone surrogates."""
        return self._summed(text) if self.by_words else self._encoded(text)

    def _summed(self, text: str) -> int:
        of_word, encoded = self._of_word, self._encoded
        return sum([of_word(word) if len(word) <= _LONGEST_WORD else encoded(word) for word in _WORD.split(text)])

    def _encoded(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False))
