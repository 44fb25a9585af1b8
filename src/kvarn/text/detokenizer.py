"""Text from a growing list of tokens."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from kvarn.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Turns tokens into text as they come, in amortised O(1) a token.

    All pieces together are `tokenizer.decode` of all tokens, however they are split. A piece never ends inside a
    character: bytes that may yet become one are held back.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        after: Sequence[int] = (),
        shown: frozenset[int] = frozenset(),
    ) -> None:
        """Start an empty text; `after` are the tokens it goes on from, so that its first word keeps its space; `shown`
        are special tokens that are not skipped."""
        self._tokenizer = tokenizer
        self._known = tokenizer.known_bytes
        self._hidden = tokenizer.special_ids - shown if skip_special_tokens else frozenset[int]()
        # Byte-level: the text is the tokens' bytes, and bytes that are not UTF-8 become U+FFFD as everywhere else.
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace") if tokenizer.is_byte_level else None
        # Else a token's text may depend on its neighbours: whether it is the first (whose space is dropped), and for
        # byte-fallback tokens on the whole run of them, which is text only if all of it is valid UTF-8.
        self._anchor: list[int] = self._last_shown(after)
        self._held: list[int] = []

    def push(self, token_ids: Iterable[int]) -> str:
        """Add tokens; returns the text that is now certain."""
        shown = [token_id for token_id in token_ids if token_id not in self._hidden]
        if self._utf8 is not None:
            return self._utf8.decode(b"".join(map(self._tokenizer.token_bytes, shown)))
        shown = [token_id for token_id in shown if self._tokenizer.has_token(token_id)]
        if not shown:
            return ""
        self._held += shown
        # Only what has just come can end the run of bytes: what was held before is such a run.
        last = len(self._held) - 1
        while last >= 0 and self._held[last] in self._tokenizer.byte_fallback_ids:
            if last < len(self._held) - len(shown):
                return ""
            last -= 1
        settled, self._held = self._held[: last + 1], self._held[last + 1 :]
        return self._text_of(settled)

    def push_one(self, token_id: int) -> str:
        if self._utf8 is None or token_id in self._hidden:
            return self.push((token_id,))
        known = self._known.get(token_id)
        return self._utf8.decode(self._tokenizer.token_bytes(token_id) if known is None else known)

    def flush(self) -> str:
        if self._utf8 is not None:
            return self._utf8.decode(b"", final=True)
        settled, self._held = self._held, []
        return self._text_of(settled)

    def _last_shown(self, token_ids: Sequence[int]) -> list[int]:
        shown = (token for token in reversed(token_ids) if token not in self._tokenizer.special_ids)
        last = next((token for token in shown if self._tokenizer.has_token(token)), None)
        return [] if last is None or last in self._tokenizer.byte_fallback_ids else [last]

    def _text_of(self, token_ids: list[int]) -> str:
        if not token_ids:
            return ""
        before = self._tokenizer.decode(self._anchor, skip_special_tokens=False)
        text = self._tokenizer.decode(self._anchor + token_ids, skip_special_tokens=False)
        self._anchor = token_ids[-1:]
        return text[len(before) :]
