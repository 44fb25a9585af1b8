"""Log-probabilities as JSON, in the three shapes clients know: chat's, completions', and vLLM's for prompts.

An answer may have a million of them, so they are encoded straight from the engine's packed form: building the objects
of `kvarn.wire.openai` and encoding those takes three times as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

from msgspec import Raw

from kvarn.text.tokenizer import Tokenizer
from kvarn.wire.messages import PositionLogprobs
from kvarn.wire.openai.chat.answer import TokenLogprobs
from kvarn.wire.openai.completions import CompletionLogprobs
from kvarn.wire.openai.usage import PromptLogprob, PromptLogprobs
from kvarn.wire.sse import encode_json

_TOKENS_REMEMBERED = 16384
"""Tokens whose encoded form is cached, for each shape: some 5 MB."""
_POSITIONS_AT_ONCE = 64
"""Positions of a prompt encoded in one turn of the event loop."""
_RAW_BYTES = 64
"""Bytes of an encoded position besides its text."""

Row = tuple[PositionLogprobs | None, int, int]
"""A token of a text completion: what is known at its position (nothing of a prompt's first), its id, and the characters
of the choice's text before it."""

ItemT = TypeVar("ItemT")


class LogprobsEncoder:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._around = lru_cache(_TOKENS_REMEMBERED)(self._around_logprob)
        self._name = lru_cache(_TOKENS_REMEMBERED)(self._json_text)

    def chat(self, positions: Sequence[PositionLogprobs], top: int) -> list[TokenLogprobs | Raw]:
        return [self._chat_position(position, top) for position in positions]

    def _chat_position(self, position: PositionLogprobs, top: int) -> Raw:
        ids, _, logprobs = position.columns()
        around = [self._around(token_id) for token_id in ids[: top + 1]]
        chosen, *others = [
            before + number + after for (before, after), number in zip(around, _numbers(logprobs), strict=False)
        ]
        return Raw(chosen[:-1] + b',"top_logprobs":[' + b",".join(others) + b"]}")

    def _around_logprob(self, token_id: int) -> tuple[bytes, bytes]:
        data = list(self._tokenizer.token_bytes(token_id))
        return b'{"token":' + self._json_text(token_id) + b',"logprob":', b',"bytes":' + encode_json(data) + b"}"

    def _json_text(self, token_id: int) -> bytes:
        return encode_json(self._tokenizer.token_text(token_id))

    def completion(self, rows: Sequence[Row], top: int) -> CompletionLogprobs:
        """The older shape of text completions: parallel lists; with `top` 0 there are no alternatives."""
        return CompletionLogprobs(
            tokens=[self._tokenizer.token_text(token_id) for _, token_id, _ in rows],
            token_logprobs=[None if position is None else position.chosen.logprob for position, _, _ in rows],
            top_logprobs=[self._top_by_text(position, top) for position, _, _ in rows] if top else None,
            text_offset=[offset for _, _, offset in rows],
        )

    def _top_by_text(self, position: PositionLogprobs | None, top: int) -> Raw | None:
        """The alternatives and the drawn token; of two tokens that read alike the likelier stands."""
        if position is None:
            return None
        ids, _, logprobs = position.columns()
        chosen, *others = zip(ids, _numbers(logprobs), strict=True)
        by_text: dict[bytes, bytes] = {}
        for token_id, number in [*others[:top], chosen]:
            by_text.setdefault(self._name(token_id), number)
        return Raw(b"{" + b",".join([name + b":" + number for name, number in by_text.items()]) + b"}")

    async def prompt(self, positions: Sequence[PositionLogprobs | None]) -> PromptLogprobs:
        """VLLM's shape for prompts: each position maps token ids to what is known of them."""
        encoded: PromptLogprobs = []
        async for part in in_parts(positions):
            encoded += [None if position is None else self._by_id(position) for position in part]
        return encoded

    def _by_id(self, position: PositionLogprobs) -> Raw:
        known = {
            str(entry.token_id): PromptLogprob(
                logprob=entry.logprob, rank=entry.rank, decoded_token=self._tokenizer.token_text(entry.token_id)
            )
            for entry in position.entries()
        }
        return Raw(encode_json(known))


async def in_parts(items: Sequence[ItemT]) -> AsyncGenerator[Sequence[ItemT], None]:
    for start in range(0, len(items), _POSITIONS_AT_ONCE):
        yield items[start : start + _POSITIONS_AT_ONCE]
        await asyncio.sleep(0)


def encoded_bytes(positions: Iterable[object]) -> int:
    """Bytes of memory that encoded positions take, about: twice their own, as the answer holds a copy in the end.

    Counted from the start, so that an answer that is too large ends before its work is done.
    """
    return 2 * sum(_RAW_BYTES + (len(each) if isinstance(each, Raw) else 0) for each in positions)


def _numbers(logprobs: tuple[float, ...]) -> list[bytes]:
    return encode_json(logprobs)[1:-1].split(b",")


def join_logprobs(parts: list[CompletionLogprobs]) -> CompletionLogprobs:
    tops = [part.top_logprobs for part in parts]
    return CompletionLogprobs(
        tokens=[token for part in parts for token in part.tokens],
        token_logprobs=[value for part in parts for value in part.token_logprobs],
        top_logprobs=None if None in tops else [entry for top in tops for entry in top or ()],
        text_offset=[offset for part in parts for offset in part.text_offset],
    )
