"""A model's tokenizer: text to token ids and back."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvarn.text.added_tokens import read_tokenizer_text
from kvarn.text.errors import TokenizerError
from kvarn.text.json_file import token_text
from kvarn.text.token_bytes import byte_fallback_tokens, is_pure_byte_level, token_bytes_reader
from kvarn.text.token_counts import TokenCounts

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library


class Tokenizer:
    """The tokenizer of one checkpoint. Safe to use from several threads; encoding releases the GIL."""

    def __init__(self, library: Library, eos_token_ids: Sequence[int]) -> None:
        self._library = library
        decoder: dict[str, Any] | None = json.loads(library.to_str())["decoder"]
        self._bytes_of = token_bytes_reader(decoder)
        self.known_bytes: dict[int, bytes] = {}  # filled as tokens are seen
        added = library.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = frozenset(token_id for token_id, token in added.items() if token.special)
        """Tokens that steer the model and are not part of the text."""
        self.markers: dict[str, int] = {
            token.content: token_id for token_id, token in added.items() if is_marker(token.content, token.special)
        }
        """Tokens that mark something and are no text, by name: a text that spells them out is not to become them."""
        self._marker_pattern = re.compile(any_of(self.markers)) if self.markers else None
        self._marker_ids = frozenset(self.markers.values())
        self._in_other_forms = library.normalizer is not None and any(
            token.normalized and token_id in self._marker_ids for token_id, token in added.items()
        )
        """Whether markers are found in texts that only become them when they are normalized."""
        self._words: Library | None = None
        self._making_words = threading.Lock()
        vocabulary = library.get_vocab(with_added_tokens=True)
        self.is_byte_level: bool = is_pure_byte_level(decoder)
        """Whether a text's bytes are just its tokens' bytes, one after another."""
        byte_tokens = byte_fallback_tokens(decoder)
        self.byte_fallback_ids: frozenset[int] = frozenset(
            token_id for token, token_id in vocabulary.items() if token in byte_tokens
        )
        """Tokens that each stand for one byte of a character which has no token of its own."""
        self.eos_token_ids: tuple[int, ...] = tuple(dict.fromkeys(eos_token_ids))
        self.vocab_size: int = max(vocabulary.values(), default=-1) + 1  # one more than the highest token id
        self.longest_token: int = max(map(len, vocabulary), default=1)
        """Characters of text that a token stands for at most."""

    @classmethod
    def load(cls, directory: Path, checkpoint: Path | None = None, generation_config: str = "auto") -> Tokenizer:
        """Read tokenizer.json and the configuration files beside it. `checkpoint`: directory that names the model's
        end tokens, where it is another; `generation_config`: see `read_generation_config`. Raises TokenizerError,
        CheckpointError."""
        # 50 ms and more that only a process with a model pays
        from tokenizers import Tokenizer as Library

        text = read_tokenizer_text(directory)
        try:
            library = Library.from_str(text)
        except Exception as error:  # the library raises plain Exception
            raise TokenizerError(
                f"Cannot read {directory}/tokenizer.json: {error}. Is the checkpoint complete?"
            ) from error
        library.no_truncation()
        library.no_padding()
        return cls(library, read_eos_ids(directory, checkpoint or directory, generation_config, library.token_to_id))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text; with `add_special_tokens` those around it. Raises TokenizerError for lone surrogates."""
        return self.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Token ids of several texts. Raises as `encode` does."""
        for text in texts:
            _check_text(text)
        # encode_batch_fast leaves out the offsets, which are not read.
        encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def encode_pair(self, first: str, second: str, max_second: int | None = None) -> list[int]:
        """Token ids of two texts as a cross-encoder reads them, special tokens around and between; those that a text
        spells out are words. The second text is cut to `max_second` tokens. Raises as `encode` does."""
        for text in (first, second):
            _check_text(text)
        left, right = (self._word_library.encode(text, add_special_tokens=False) for text in (first, second))
        if max_second is not None:
            right.truncate(max_second)
        ids: list[int] = self._library.post_process(left, right, True).ids
        return ids

    @cached_property
    def count(self) -> TokenCounts:
        """Counts a text's tokens, without special ones; it remembers words. Raises as `encode` does."""
        return TokenCounts(self)

    def find_markers(self, text: str) -> list[tuple[int, int]]:
        """Find the markers that `encode` sees in a text: places of their first character and behind their last."""
        if self._marker_pattern is None:
            return []
        if not self._in_other_forms:
            return [found.span() for found in self._marker_pattern.finditer(text)]
        encoding = self._library.encode(text, add_special_tokens=False)
        tokens = zip(encoding.ids, encoding.offsets, strict=True)
        return [place for token_id, place in tokens if token_id in self._marker_ids]

    def encode_words(self, text: str) -> list[int]:
        """Token ids of a text in which markers are words like any other. Raises as `encode` does."""
        _check_text(text)
        return self._word_library.encode(text, add_special_tokens=False).ids

    def cut(self, text: str, max_tokens: int) -> str:
        """The beginning of a text that its first tokens stand for, special ones being words. Raises as `encode`."""
        _check_text(text)
        encoding = self._word_library.encode(text, add_special_tokens=False)
        return text if len(encoding.ids) <= max_tokens else text[: encoding.offsets[max_tokens - 1][1]]

    def prepare_words(self) -> None:
        """Make ready for `encode_words`: a large vocabulary takes the first one a good part of a second."""
        _ = self._word_library

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids; those above the vocabulary (padding of the embedding matrix) have none. Raises
        TokenizerError for what is no token id at all."""
        try:
            return self._library.decode(list(ids), skip_special_tokens=skip_special_tokens)
        except (OverflowError, TypeError) as error:
            raise TokenizerError(
                f"These are not token ids: each is a whole number from 0 to {self.vocab_size - 1}."
            ) from error

    @property
    def _word_library(self) -> Library:
        """A second one: made when first needed, or by `prepare_words`."""
        with self._making_words:
            if self._words is None:
                self._words = words = type(self._library).from_str(self._library.to_str())
                for token in words.get_added_tokens_decoder().values():
                    if is_marker(token.content, token.special):
                        token.special = True
                        words.add_special_tokens([token])
                words.encode_special_tokens = True
        return self._words

    def vocabulary(self) -> Iterable[str]:
        """All tokens, as tokenizer.json spells them."""
        return self._library.get_vocab(with_added_tokens=True).keys()

    def has_token(self, token_id: int) -> bool:
        """Whether the id lies in the vocabulary's range."""
        return 0 <= token_id < self.vocab_size

    def ids_of(self, tokens: Iterable[str]) -> frozenset[int]:
        """The ids of those of these tokens that the vocabulary has."""
        found = map(self._library.token_to_id, tokens)
        return frozenset(token_id for token_id in found if token_id is not None)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for: perhaps part of a character. Empty for an id without a token."""
        known = self.known_bytes.get(token_id)
        if known is None:
            token = self._library.id_to_token(token_id) if self.has_token(token_id) else None
            known = b"" if token is None else self._bytes_of(token)
            self.known_bytes[token_id] = known
        return known

    def token_text(self, token_id: int) -> str:
        """A token as text; bytes that are not whole characters show as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")


_MARKER = re.compile(r"[\s▁]*+(?![\w\s]).*\w.*(?![\w\s])\S[\s▁]*+", re.DOTALL)


def is_marker(name: str, special: bool) -> bool:
    """Whether an added token marks something, and is no text: a special one, or a word between other signs, such as
    `<tool_call>`, `[THINK]` or `｜User｜`, whatever it is declared to be."""
    return special or _MARKER.fullmatch(name) is not None


def read_eos_ids(
    directory: Path, checkpoint: Path, generation_config: str, id_of: Callable[[str], int | None]
) -> list[int]:
    """The tokens that end an answer: the model's (see `read_end_tokens`), and the tokenizer's own. Raises
    CheckpointError."""
    from kvarn.text.config_files import read_end_tokens, read_tokenizer_config

    ends = read_end_tokens(checkpoint, generation_config)
    text = token_text(read_tokenizer_config(directory).get("eos_token"))
    token_id = None if text is None else id_of(text)
    return list(dict.fromkeys(ends if token_id is None else [*ends, token_id]))


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"The text holds a lone surrogate (\\u{ord(text[error.start]):04x} at character {error.start}), "
            "which is not valid Unicode: send whole characters."
        ) from None


def any_of(texts: Iterable[str]) -> str:
    """A pattern that finds the longest of some texts. Those that begin alike share their beginning: a search among
    thousands (`<unused0>` to `<unused6241>`) looks at each character of the text once."""
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    return _pattern(tree)


def _pattern(node: dict[str, Any]) -> str:
    straight = ""
    while len(node) == 1 and "" not in node:
        ((character, node),) = node.items()
        straight += re.escape(character)
    branches = [re.escape(character) + _pattern(child) for character, child in node.items() if character]
    if not branches:
        return straight
    return f"{straight}(?:{'|'.join(branches)}){'?' if '' in node else ''}"
