"""Answers as bytes: the deltas of all choices, in their order, for the response cache."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw

from kvarn.answers.choice import ChoiceDelta
from kvarn.text.reasoning.splitter import Part, Reasoning
from kvarn.text.tool_calls.events import new_call_id
from kvarn.wire.messages import PositionLogprobs
from kvarn.wire.openai.chat.answer import FunctionCallDelta, ToolCallDelta
from kvarn.wire.openai.completions import CompletionLogprobs


class _Reasoning(msgspec.Struct, array_like=True, tag="r", gc=False):
    text: str


class _Call(msgspec.Struct, array_like=True, tag="c", gc=False):
    index: int
    name: str | None
    arguments: str | None
    begins: bool


class _Delta(msgspec.Struct, array_like=True, omit_defaults=True):
    index: int
    text: str
    token_ids: list[int]
    finish_reason: Any = None
    reasoning_tokens: int = 0
    parts: list[str | _Reasoning | _Call] | None = None
    positions: list[PositionLogprobs] = []
    logprobs: bytes | None = None  # JSON, since they go out as they are
    stop_reason: int | str | None = None
    cut_call: bool = False
    warnings: list[str] = []
    prompt_positions: list[PositionLogprobs | None] | None = None
    completion_logprobs: bytes | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[_Delta])
_raw_list = msgspec.json.Decoder(list[Raw])


def packed_delta(delta: ChoiceDelta) -> bytes:
    """One delta. Raises `UnicodeEncodeError`: it has half a character, which no text in UTF-8 has."""
    own = delta.completion_logprobs
    return _encoder.encode(
        _Delta(
            delta.index,
            delta.text,
            delta.token_ids,
            delta.finish_reason,
            delta.reasoning_tokens,
            None if delta.parts is None else [_packed_part(part) for part in delta.parts],
            delta.positions,
            None if delta.logprobs is None else msgspec.json.encode(delta.logprobs),
            delta.stop_reason,
            delta.cut_call,
            delta.warnings,
            delta.prompt_positions,
            None if own is None else msgspec.json.encode(own),
        )
    )


def joined_deltas(deltas: list[bytes]) -> bytes:
    return b"\xdd" + len(deltas).to_bytes(4, "big") + b"".join(deltas)


def unpacked(content: bytes) -> list[ChoiceDelta]:
    """The deltas; calls of tools get ids of their own. Raises `msgspec.DecodeError`: another version packed them."""
    return [_unpacked(each) for each in _decoder.decode(content)]


def _unpacked(packed: _Delta) -> ChoiceDelta:
    logprobs, own = packed.logprobs, packed.completion_logprobs
    return ChoiceDelta(
        packed.index,
        text=packed.text,
        token_ids=packed.token_ids,
        reasoning_tokens=packed.reasoning_tokens,
        positions=packed.positions,
        prompt_positions=packed.prompt_positions,
        finish_reason=packed.finish_reason,
        stop_reason=packed.stop_reason,
        parts=None if packed.parts is None else [_part(part) for part in packed.parts],
        cut_call=packed.cut_call,
        logprobs=None if logprobs is None else list(_raw_list.decode(logprobs)),
        completion_logprobs=None if own is None else msgspec.json.decode(own, type=CompletionLogprobs),
        warnings=packed.warnings,
    )


def _packed_part(part: Part | ToolCallDelta) -> str | _Reasoning | _Call:
    if isinstance(part, str):
        return part
    if isinstance(part, Reasoning):
        return _Reasoning(part.text)
    name, arguments = part.function.name, part.function.arguments
    return _Call(
        part.index,
        name if isinstance(name, str) else None,
        arguments if isinstance(arguments, str) else None,
        isinstance(part.id, str),
    )


def _part(part: str | _Reasoning | _Call) -> Part | ToolCallDelta:
    if isinstance(part, str):
        return part
    if isinstance(part, _Reasoning):
        return Reasoning(part.text)
    function = FunctionCallDelta(
        name=UNSET if part.name is None else part.name, arguments=UNSET if part.arguments is None else part.arguments
    )
    if not part.begins:
        return ToolCallDelta(index=part.index, function=function)
    return ToolCallDelta(index=part.index, function=function, id=new_call_id(), type="function")
