"""Contents of a kept request: a row to find it by, and all that is told of it, packed."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from kvarn.explain.explanation import Cause
from kvarn.kept.sampling import KeptReason
from kvarn.observe.traces.traced import TracedRequest
from kvarn.wire.step_records import TurnSteps

ROW_BYTES = 1024
"""Bytes that a request counts for besides what is packed: its row, and its entries in the indexes."""
MAX_STEP_BYTES = 256 * 1024
"""Packed steps are kept up to this size: those of a very long answer are left out."""
_NAME, _ID, _CODE = 256, 128, 64  # lengths of the columns


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request, and by the engine's id of each turn the steps that it was in, where they were asked for."""

    request: TracedRequest
    steps: dict[str, TurnSteps] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Kept).decode


def pack(kept: Kept) -> bytes:
    packed = zlib.compress(_encode(kept), 1)
    if kept.steps and len(packed) > MAX_STEP_BYTES:
        return pack(Kept(request=kept.request))
    return packed


def unpack(packed: bytes) -> Kept:
    """Open what was packed. Raises `ValueError`: it was not, or by a later version in another way."""
    try:
        return _decode(zlib.decompress(packed))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"a kept request cannot be read: {error}") from error


def row_of(request: TracedRequest, reason: KeptReason, cause: Cause | None, packed_bytes: int) -> dict[str, Any]:
    """The row of a request: columns of `KeptRequest`. Texts of clients are cut to what the columns hold. `cause`: None,
    it could not be explained."""
    last, ttft_s = request.turns[-1] if request.turns else None, request.ttft_s
    return {
        "id": _text(request.id, _ID),
        "request_id": _text(request.request_id, _ID),
        "organization_id": request.organization_id,
        "project_id": request.project_id,
        "key_id": request.key_id or None,
        "session": _text(request.session, _NAME) or None,
        "end_user": _text(request.end_user, _NAME) or None,
        "batch_id": request.batch_id or None,
        "model": _text(request.model, _NAME),
        "model_version": "" if last is None else _text(last.model_version, _NAME),
        "adapter": "" if last is None else _text(last.adapter, _NAME),
        "replica": "" if last is None else _text(last.replica, _NAME),
        "endpoint": _text(request.route, _NAME),
        "status": request.status,
        "outcome": request.outcome,
        "error_code": _text(request.error_code, _CODE),
        "reason": str(reason),
        "cause": "" if cause is None else str(cause.code),
        "cause_us": 0 if cause is None else max(0, round(cause.seconds * 1e6)),
        "started_us": round(request.started_at * 1e6),
        "total_us": round(request.total_s * 1e6),
        "ttft_us": None if ttft_s is None else max(0, round(ttft_s * 1e6)),
        "input_tokens": sum(turn.prompt_tokens for turn in request.turns),
        "cached_tokens": sum(turn.cached_tokens for turn in request.turns),
        "output_tokens": sum(turn.output_tokens for turn in request.turns),
        "cost": request.cost,
        "kept_bytes": ROW_BYTES + packed_bytes,
    }


def name_of_column(text: str) -> str:
    """A client's text as a column has it, to look for it."""
    return _text(text, _NAME)


def _text(text: str, length: int) -> str:
    return text[:length].replace("\0", "")
