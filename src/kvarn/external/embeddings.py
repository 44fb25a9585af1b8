"""Embedding texts with a model that another server runs."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import Sequence
from typing import Any

from kvarn.answers.generator import EmbeddingInputs
from kvarn.answers.turn import Turn
from kvarn.catalog.timeouts import StageTimeoutError
from kvarn.external.answer import EmbeddingAnswer, EmbeddingPart
from kvarn.external.chat import prompt_key
from kvarn.external.errors import ExternalFailedError, ExternalRefusedError
from kvarn.external.model import ExternalModel
from kvarn.wire.openai.errors import ApiError, invalid_request


def external_inputs(
    model: ExternalModel, named: Sequence[tuple[str, str | list[int]]], max_tokens: int | None
) -> tuple[list[str | list[int]], int]:
    """The inputs, and about how many tokens they have. Inputs that are to be cut are refused: that needs the model's
    own tokenizer."""
    if max_tokens is not None:
        why = "'max_tokens_per_doc' is not supported for a model that another server runs: shorten the texts."
        raise invalid_request(why, "max_tokens_per_doc", "unsupported_parameter")
    inputs = [given for _, given in named]
    return inputs, sum(len(each) if isinstance(each, list) else model.count_tokens(each) for each in inputs)


async def embed_external(
    model: ExternalModel, inputs: EmbeddingInputs, turn: Turn, dimensions: int | None
) -> list[bytes]:
    """Vectors of inputs, float32 little-endian, counted to `turn`."""
    name = model.config.model or model.served.name
    body: dict[str, Any] = {"model": name, "input": list(inputs), "encoding_format": "float"}
    if dimensions is not None:
        body["dimensions"] = dimensions
    if any(isinstance(each, list) for each in inputs) and any(isinstance(each, str) for each in inputs):
        raise invalid_request("'input' may not mix texts and token ids.", "input")
    usage = turn.usage
    try:
        trace = turn.record.timeline.trace_headers
        key = prompt_key({"prompt": inputs[0]})
        answer = await model.ask(key, turn, lambda replica: replica.embed_texts(body, trace))
        vectors = _vectors(answer, len(inputs))
    except (ExternalRefusedError, ExternalFailedError, StageTimeoutError, ApiError):
        usage.failed = True
        raise
    except asyncio.CancelledError:  # the server has been at it: as with an answer, leaving early is not free
        usage.count(prompt=turn.prompt_tokens)
        raise
    reported = 0 if answer.usage is None else answer.usage.prompt_tokens
    if not reported:
        model.metrics.estimated.labels(model.served.name).inc()
    usage.count(prompt=reported or turn.prompt_tokens)
    usage.pending -= 1
    return vectors


def _vectors(answer: EmbeddingAnswer, count: int) -> list[bytes]:
    ordered = sorted(answer.data, key=lambda part: part.index)
    if [part.index for part in ordered] != list(range(count)):
        raise ExternalFailedError(f"it sent {len(ordered)} vectors for {count} inputs")
    vectors = [_bytes(part) for part in ordered]
    if len({len(vector) for vector in vectors}) != 1 or not vectors[0]:
        raise ExternalFailedError("its vectors have different sizes")
    return vectors


def _bytes(part: EmbeddingPart) -> bytes:
    given = part.embedding
    try:
        packed = (
            base64.b64decode(given, validate=True) if isinstance(given, str) else struct.pack(f"<{len(given)}f", *given)
        )
    except (ValueError, struct.error, OverflowError) as error:
        raise ExternalFailedError(f"its vectors cannot be read: {error}") from None
    if len(packed) % 4:
        raise ExternalFailedError("its vectors are not of whole numbers")
    return packed
